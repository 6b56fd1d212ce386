"""The custom operators in ONNX Runtime: every name, dtype and form against the reference, in any shapes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msdeform.onnx import library_path
from onnx_calls import (
    GIVEN,
    OFFSETS,
    Array,
    assert_within,
    changed,
    expected,
    expected_from_offsets,
    offset_inputs,
    one_node,
    onnxruntime,
    random_inputs,
)

BOUNDS = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 5e-4}


def options(threads: int = 2) -> Any:
    found = onnxruntime.SessionOptions()
    found.register_custom_ops_library(library_path())
    found.intra_op_num_threads = threads
    found.log_severity_level = 4  # Errors are raised; what tests provoke need not be printed as well.
    return found


def session(
    name: tuple[str, str],
    inputs: Mapping[str, Array],
    static: Mapping[str, Sequence[Any]] | None = None,
    threads: int = 2,
    **attributes: Any,
) -> Any:
    """One node whose inputs have these types and ranks, and any sizes unless `static` says which."""
    model = one_node(name, inputs, static, **attributes)
    return onnxruntime.InferenceSession(model, options(threads), ["CPUExecutionProvider"])


def assert_close(found: Array, wanted: Array, dtype: Any) -> None:
    assert_within(BOUNDS, found, wanted, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", GIVEN, ids=lambda name: name[1])
def test_every_name_computes_the_operator(name: tuple[str, str], dtype: Any) -> None:
    attributes = {"im2col_step": 64} if name[0] == "mmdeploy" else {}
    inputs = random_inputs(dtype=dtype, integers=GIVEN[name])
    [found] = session(name, inputs, **attributes).run(None, inputs)
    wanted = expected(inputs)
    # TensorRT's plugin keeps heads apart.
    assert_close(found, wanted.reshape(*wanted.shape[:2], 4, 8) if name[0] == "trt.plugins" else wanted, dtype)


@pytest.mark.parametrize(
    "narrow", [(), ("sampling_locations",), ("attention_weights",), ("sampling_locations", "attention_weights")]
)
def test_samples_beside_half_values_may_be_float_each_by_itself(narrow: tuple[str, ...]) -> None:
    inputs = random_inputs(dtype=np.float16, sampling=np.float32, queries=200)
    inputs.update({key: inputs[key].astype(np.float16) for key in narrow})
    [found] = session(("msdeform", "MSDeformAttn"), inputs).run(None, inputs)
    assert_close(found, expected(inputs), np.float16)


def test_one_session_takes_every_batch_image_size_and_number_of_queries() -> None:
    name, small = ("msdeform", "MSDeformAttn"), random_inputs()
    runner = session(name, small)
    cases = [
        small,
        random_inputs(batch=1, queries=300),
        random_inputs(levels=((20, 30), (10, 15), (5, 8)), queries=760),  # Enough for two threads, heads staged.
        random_inputs(seed=5, levels=((20, 30), (10, 15), (5, 8)), queries=760),  # The same plan, other values.
        random_inputs(heads=1, channels=33, points=1),
        random_inputs(levels=((4, 4),), points=5),
        small,
    ]
    for inputs in cases * 2:
        [found] = runner.run(None, inputs)
        assert_close(found, expected(inputs), np.float32)


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"queries": 0}, {"points": 0}, {"channels": 0}])
def test_sizes_of_zero_are_fine(sizes: dict[str, int]) -> None:
    inputs = random_inputs(**sizes)
    [found] = session(("msdeform", "MSDeformAttn"), inputs).run(None, inputs)
    assert found.shape == (sizes.get("batch", 2), sizes.get("queries", 7), 4 * sizes.get("channels", 8))
    assert not found.any()


def test_samples_may_be_one_axis_and_points_may_differ() -> None:
    inputs = random_inputs()
    flat = dict(inputs)
    flat["sampling_locations"] = inputs["sampling_locations"].reshape(2, 7, 4, 9, 2)
    flat["attention_weights"] = inputs["attention_weights"].reshape(2, 7, 4, 9)
    name = ("msdeform", "MSDeformAttn")
    [found] = session(name, flat).run(None, flat)
    assert_close(found, expected(inputs), np.float32)
    [found] = session(name, flat, points=[2, 6, 1]).run(None, flat)
    assert_close(found, expected(flat, points=[2, 6, 1]), np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("references", [(2, 7, 3, 2), (2, 7, 1, 4), (1, 7, 3, 4), (2, 1, 1, 2), (1, 1, 3, 2)])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"offset_scale": 0.25, "softmax": 0},
        {"nearest": 1, "points": [3, 3, 3]},
        {"anchors": 1},
    ],
    ids=str,
)
def test_offsets_are_followed_as_in_pytorch(
    references: tuple[int, ...], attributes: dict[str, Any], dtype: Any
) -> None:
    inputs = offset_inputs(references, dtype)
    [found] = session(OFFSETS, inputs, **attributes).run(None, inputs)
    assert_close(found, expected_from_offsets(inputs, **attributes), dtype)


@pytest.mark.parametrize("wide", ["reference_points", "sampling_offsets", "attention_logits"])
def test_what_offsets_start_from_may_be_float_beside_half_values(wide: str) -> None:
    inputs = offset_inputs((1, 7, 3, 2), np.float16)
    inputs[wide] = inputs[wide].astype(np.float32)
    [found] = session(OFFSETS, inputs).run(None, inputs)
    assert_close(found, expected_from_offsets(inputs), np.float16)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_are_the_same_bits_whatever_the_threads_of_the_session(threads: int) -> None:
    inputs = random_inputs(levels=((20, 30), (10, 15), (5, 8)), queries=760)
    name = ("msdeform", "MSDeformAttn")
    [alone] = session(name, inputs, threads=1).run(None, inputs)
    [found] = session(name, inputs, threads=threads).run(None, inputs)
    assert np.array_equal(alone, found)


def test_runs_of_one_session_may_overlap() -> None:
    cases = [random_inputs(seed=seed, queries=200 + 100 * (seed % 2)) for seed in range(4)]
    runner = session(("msdeform", "MSDeformAttn"), cases[0])
    wanted = [runner.run(None, inputs)[0] for inputs in cases]
    wrong: list[int] = []

    def run(index: int) -> None:
        for _ in range(20):
            [found] = runner.run(None, cases[index])
            if not np.array_equal(found, wanted[index]):
                wrong.append(index)

    workers = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    for inputs, output in zip(cases, wanted, strict=True):
        assert_close(output, expected(inputs), np.float32)


@pytest.mark.parametrize(
    ("static", "wanted"),
    [
        (
            {"value": ["batch", "pixels", 4, 8], "sampling_locations": ["batch", "queries", 4, 3, 3, 2]},
            ["batch", "queries", 32],
        ),
        ({"value": [2, 141, 4, 8], "attention_weights": [2, 7, 4, 3, 3]}, [2, 7, 32]),
    ],
)
def test_the_shape_of_the_output_is_known_before_the_run(static: dict[str, list[Any]], wanted: list[Any]) -> None:
    inputs = random_inputs()
    [output] = session(("msdeform", "MSDeformAttn"), inputs, static).get_outputs()
    assert output.shape == wanted and output.type == "tensor(float)"
    [output] = session(("msdeform", "MSDeformAttn"), random_inputs(dtype=np.float16), static).get_outputs()
    assert output.shape == wanted and output.type == "tensor(float16)"


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (changed(level_start_index=[0, 100, 138]), "levels 0 and 1 overlap.*check `level_start_index`"),
        (changed(level_start_index=[0, 108, -1]), r"`level_start_index\[2\]` is -1"),
        (changed(level_start_index=[0, 108]), r"`level_start_index` has shape \[2\], expected \[3\]"),
        (changed(spatial_shapes=[[9, 12], [5, -6], [1, 3]]), "level 1 is 5 x -6"),
        (
            changed(spatial_shapes=[[9, 12], [5, 6], [1, 4]]),
            "level 2 ends at pixel 142, but `value` has only 141 pixels",
        ),
        (changed(spatial_shapes=[[9, 12, 1], [5, 6, 1], [1, 3, 1]]), r"`spatial_shapes` has shape \[3, 3\]"),
        (changed(value=np.zeros((2, 141, 32), np.float32)), r"`value` has shape \[2, 141, 32\], expected \[batch"),
        (changed(sampling_locations=np.zeros((2, 7, 4, 3, 3), np.float32)), "`sampling_locations` has shape"),
        (
            changed(sampling_locations=np.zeros((1, 7, 4, 3, 3, 2), np.float32)),
            r"expected \[2, queries, 4, 3, points, 2\]",
        ),
        (changed(sampling_locations=np.zeros((1, 2, 7, 4, 3, 3, 2), np.float32)), "at most 6 axes"),
        (
            changed(attention_weights=np.zeros((2, 6, 4, 3, 3), np.float32)),
            "`attention_weights` has shape .*as many queries",
        ),
        (
            changed(attention_weights=np.zeros((2, 7, 4, 10), np.float32)),
            r"expected \[2, 7, 4, 3, 3\] or \[2, 7, 4, 9\], as many queries and points as `sampling_locations`",
        ),
    ],
)
def test_wrong_inputs_are_refused_in_words_and_the_session_lives_on(inputs: dict[str, Array], words: str) -> None:
    runner = session(("msdeform", "MSDeformAttn"), inputs)
    with pytest.raises(Exception, match=words):
        runner.run(None, inputs)
    if all(inputs[name].ndim == array.ndim for name, array in random_inputs().items()):
        [found] = runner.run(None, random_inputs())
        assert_close(found, expected(random_inputs()), np.float32)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "words"),
    [
        (
            ("msdeform", "MSDeformAttn"),
            random_inputs(sampling=np.float64),
            {},
            "is double, expected float like `value`",
        ),
        (
            ("msdeform", "MSDeformAttn"),
            random_inputs(sampling=np.float16),
            {},
            "is float16, expected float like `value`",
        ),
        (("msdeform", "MSDeformAttn"), random_inputs(), {"points": 3}, "`points` is no list of integers"),
        (("msdeform", "MSDeformAttn"), random_inputs(), {"points": [3, -3, 3]}, r"`points` is \[3, -3, 3\]"),
        (OFFSETS, offset_inputs((2, 7, 3, 2), np.float32), {"softmax": 2}, "`softmax` is 2; give 0 or 1"),
        (OFFSETS, offset_inputs((2, 7, 3, 2), np.float32), {"offset_scale": 1}, "`offset_scale` is an integer"),
    ],
)
def test_a_node_that_makes_no_sense_is_refused_when_the_session_is_made(
    name: tuple[str, str], inputs: dict[str, Array], attributes: dict[str, Any], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        session(name, inputs, **attributes)


def test_points_must_be_as_many_as_levels() -> None:
    inputs = random_inputs()
    with pytest.raises(Exception, match="`points` has 2 entries for 3 levels"):
        session(("msdeform", "MSDeformAttn"), inputs, points=[3, 3]).run(None, inputs)


def test_tensorrts_name_is_as_strict_as_its_plugin() -> None:
    name = ("trt.plugins", "MultiscaleDeformableAttnPlugin_TRT")
    for inputs in (random_inputs(), random_inputs(dtype=np.float16, sampling=np.float32, integers=np.int32)):
        with pytest.raises(Exception, match=r"Type Error|implementation|no kernel def"):
            session(name, inputs)


def test_many_sessions_may_be_made_of_the_same_library() -> None:
    inputs = random_inputs()
    for _ in range(20):
        [found] = session(("msdeform", "MSDeformAttn"), inputs).run(None, inputs)
    assert_close(found, expected(inputs), np.float32)


@pytest.mark.skipif(sys.platform != "linux", reason="only the wheel for Linux loads without Python")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_library_loads_in_a_program_without_python(tmp_path: Path) -> None:
    source = tmp_path / "load.c"
    source.write_text(
        "#include <dlfcn.h>\n"
        "#include <stdio.h>\n"
        "int main(int count, char** words) {\n"
        "    void* library = count == 2 ? dlopen(words[1], RTLD_NOW) : NULL;\n"
        '    if (!library || !dlsym(library, "RegisterCustomOps")) { puts(dlerror()); return 1; }\n'
        '    return dlsym(RTLD_DEFAULT, "Py_Initialize") ? 2 : 0;\n'
        "}\n"
    )
    program = tmp_path / "load"
    subprocess.run(["cc", "-D_GNU_SOURCE", source, "-ldl", "-o", program], check=True)
    done = subprocess.run([program, library_path()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
