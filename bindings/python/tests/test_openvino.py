"""The operators in OpenVINO, from Python and as the library of `bindings/openvino`, against the reference.

`MSDEFORM_OPENVINO_EXTENSION` is the path of the library (`cargo xtask test` builds it); without it only Python's are
tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_calls import (
    Array,
    Levels,
    assert_within,
    changed,
    expected,
    expected_from_offsets,
    offset_inputs,
    one_node,
    random_inputs,
)

openvino = pytest.importorskip("openvino")
from msdeform.openvino import add_extension  # noqa: E402

LIBRARY = os.environ.get("MSDEFORM_OPENVINO_EXTENSION")
BOUNDS = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 1e-3}
LARGE: Levels = ((20, 30), (10, 15), (5, 8))


@pytest.fixture(
    scope="module",
    params=[
        "python",
        pytest.param("library", marks=pytest.mark.skipif(not LIBRARY, reason="MSDEFORM_OPENVINO_EXTENSION is not set")),
    ],
)
def core(request: Any) -> Iterator[Any]:
    """A core that knows the operators."""
    found = openvino.Core()
    if request.param == "library":
        found.add_extension(LIBRARY)
    else:
        add_extension(found, threads=2)
    yield found


def onnx_file(name: str, inputs: Mapping[str, Array], **attributes: Any) -> bytes:
    return one_node(("msdeform", name), inputs, **attributes)


def compiled(core: Any, name: str, inputs: Mapping[str, Array], **attributes: Any) -> Any:
    return core.compile_model(core.read_model(onnx_file(name, inputs, **attributes)), "CPU")


def assert_close(found: Array, wanted: Array, dtype: Any = np.float32) -> None:
    assert_within(BOUNDS, found, wanted, dtype)


@pytest.mark.parametrize(
    ("dtype", "sampling"), [(np.float32, np.float32), (np.float16, np.float16), (np.float16, np.float32)]
)
def test_a_node_of_an_onnx_file_computes_the_operator(core: Any, dtype: Any, sampling: Any) -> None:
    inputs = random_inputs(dtype=dtype, sampling=sampling)
    assert_close(compiled(core, "MSDeformAttn", inputs)(inputs)[0], expected(inputs), dtype)


def test_one_model_takes_every_batch_image_size_and_number_of_queries(core: Any) -> None:
    model = compiled(core, "MSDeformAttn", random_inputs())
    cases = [
        random_inputs(),
        random_inputs(batch=1, queries=300),
        random_inputs(levels=LARGE, queries=760),
        random_inputs(seed=5, levels=LARGE, queries=760),  # The same plan, other values.
        random_inputs(heads=1, channels=33, points=1),
        random_inputs(levels=((4, 4),), points=5),
        random_inputs(queries=0),
        random_inputs(batch=0),
    ]
    for inputs in cases * 2:
        found, wanted = model(inputs)[0], expected(inputs)
        if wanted.size:
            assert_close(found, wanted)
        assert found.shape == wanted.shape


def test_samples_may_be_one_axis_and_points_may_differ(core: Any) -> None:
    inputs = random_inputs()
    flat = {
        **inputs,
        "sampling_locations": inputs["sampling_locations"].reshape(2, 7, 4, 9, 2),
        "attention_weights": inputs["attention_weights"].reshape(2, 7, 4, 9),
    }
    assert_close(compiled(core, "MSDeformAttn", flat)(flat)[0], expected(inputs))
    found = compiled(core, "MSDeformAttn", flat, points=[2, 6, 1])(flat)[0]
    assert_close(found, expected(flat, points=[2, 6, 1]))


@pytest.mark.parametrize("references", [(2, 7, 3, 2), (2, 7, 1, 4), (1, 7, 3, 4), (2, 1, 1, 2), (1, 1, 3, 2)])
@pytest.mark.parametrize(
    "attributes",
    [{}, {"offset_scale": 0.25, "softmax": 0}, {"nearest": 1, "points": [3, 3, 3]}, {"anchors": 1}],
    ids=str,
)
def test_offsets_are_followed_and_a_saved_model_does_the_same(
    core: Any, references: tuple[int, ...], attributes: dict[str, Any], tmp_path: Path
) -> None:
    inputs = offset_inputs(references)
    model = core.read_model(onnx_file("MSDeformAttnFromOffsets", inputs, **attributes))
    wanted = expected_from_offsets(inputs, **attributes)
    assert_close(core.compile_model(model, "CPU")(inputs)[0], wanted)
    openvino.save_model(model, tmp_path / "model.xml")
    again = core.read_model(tmp_path / "model.xml")
    assert_close(core.compile_model(again, "CPU")(inputs)[0], wanted)


@pytest.mark.parametrize("wide", ["reference_points", "sampling_offsets", "attention_logits"])
def test_one_input_of_half_values_may_be_float(core: Any, wide: str) -> None:
    inputs = offset_inputs((1, 7, 3, 2), np.float16)
    inputs[wide] = inputs[wide].astype(np.float32)
    found = compiled(core, "MSDeformAttnFromOffsets", inputs)(inputs)[0]
    assert_close(found, expected_from_offsets(inputs), np.float16)


@pytest.mark.parametrize(("dtype", "bound"), [("f32", 1e-5), ("f16", 5e-4), ("bf16", 4e-3)])
def test_a_node_computes_each_dtype_that_openvino_gives_it(core: Any, dtype: str, bound: float) -> None:
    """By OpenVINO's interpreter: its CPU device converts half values before a node of another library."""
    inputs = offset_inputs((2, 7, 3, 2))
    model = core.read_model(onnx_file("MSDeformAttnFromOffsets", inputs))
    [node] = [each for each in model.get_ops() if each.get_type_name() == "MSDeformAttnFromOffsets"]
    kind = getattr(openvino.Type, dtype)
    for parameter in model.get_parameters():
        if parameter.get_element_type() == openvino.Type.f32:
            parameter.set_element_type(kind)
    model.validate_nodes_and_infer_types()
    assert node.get_output_element_type(0) == kind
    tensors, wide = [], {}
    for parameter, (name, array) in zip(model.get_parameters(), inputs.items(), strict=True):
        if parameter.get_element_type() == kind:
            given = openvino.Tensor(kind, openvino.Shape(array.shape))
            given.data[:] = narrowed(array, dtype)
            tensors.append(given)
            wide[name] = widened(given.data, dtype)
        else:
            tensors.append(openvino.Tensor(array))
            wide[name] = array
    outputs = [openvino.Tensor(kind, openvino.Shape([2, 7, 32]))]
    assert model.evaluate(outputs, tensors)
    wanted = expected_from_offsets(wide)
    error = np.linalg.norm(widened(outputs[0].data, dtype) - wanted) / np.linalg.norm(wanted)
    assert error <= bound  # NaN is not.


def narrowed(array: Array, dtype: str) -> Array:
    """As the memory of a tensor holds them: NumPy shows bfloat16 as float16, by the same bits."""
    if dtype != "bf16":
        return array.astype(np.float16 if dtype == "f16" else np.float32)
    return ((array.view(np.uint32) + 0x8000) >> 16).astype(np.uint16).view(np.float16)


def widened(array: Array, dtype: str) -> Array:
    if dtype != "bf16":
        return array.astype(np.float64)
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def test_the_shape_of_the_output_follows_from_those_of_the_inputs(core: Any) -> None:
    inputs = random_inputs()
    model = core.read_model(onnx_file("MSDeformAttn", inputs))
    assert str(model.output(0).partial_shape) == "[?,?,?]"
    model.reshape({key: list(array.shape) for key, array in inputs.items()})
    assert list(model.output(0).shape) == [2, 7, 32]


def test_runs_of_one_model_may_overlap_and_pinned_threads_stay_pinned(core: Any) -> None:
    cases = [random_inputs(seed=seed, levels=LARGE, queries=500 + 100 * (seed % 2)) for seed in range(4)]
    model = core.compile_model(
        core.read_model(onnx_file("MSDeformAttn", cases[0])), "CPU", {"NUM_STREAMS": 2, "ENABLE_CPU_PINNING": True}
    )
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    wanted = [model.create_infer_request().infer(inputs)[0].copy() for inputs in cases]
    wrong: list[int] = []

    def run(index: int) -> None:
        request = model.create_infer_request()
        wrong.extend(index for _ in range(10) if not np.array_equal(request.infer(cases[index])[0], wanted[index]))

    workers = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert cores is None or os.sched_getaffinity(0) == cores
    for inputs, output in zip(cases, wanted, strict=True):
        assert_close(output, expected(inputs))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (changed(level_start_index=[0, 100, 138]), "levels 0 and 1 overlap"),
        (changed(level_start_index=[0, 108]), "`level_start_index`"),
        (changed(spatial_shapes=[[9, 12], [5, -6], [1, 3]]), "level 1 is 5 x -6"),
        (changed(spatial_shapes=[[9, 12], [5, 6], [1, 4]]), "level 2 ends at pixel 142, but `value` has only 141"),
        (changed(spatial_shapes=[[9, 12, 1], [5, 6, 1], [1, 3, 1]]), "`spatial_shapes` has shape"),
        (changed(attention_weights=np.zeros((2, 6, 4, 3, 3), np.float32)), "`attention_weights` has shape"),
        (changed(sampling_locations=np.zeros((1, 7, 4, 3, 3, 2), np.float32)), "`sampling_locations` has shape"),
    ],
)
def test_wrong_inputs_are_named_and_the_model_lives_on(core: Any, inputs: dict[str, Array], words: str) -> None:
    model = compiled(core, "MSDeformAttn", inputs)
    with pytest.raises(Exception, match=words):
        model(inputs)
    assert_close(model(random_inputs())[0], expected(random_inputs()))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (changed(value=np.zeros((2, 141, 32), np.float32)), "`value` has shape .*expected 4 axes"),
        (
            changed(sampling_locations=np.zeros((2, 7, 4, 3), np.float32)),
            "`sampling_locations` has shape .*5 or 6 axes",
        ),
    ],
)
def test_wrong_ranks_are_refused_when_the_file_is_read(core: Any, inputs: dict[str, Array], words: str) -> None:
    with pytest.raises(Exception, match=words):
        core.read_model(onnx_file("MSDeformAttn", inputs))


def test_what_add_extension_cannot_use_is_named() -> None:
    with pytest.raises(TypeError, match=r"`core` is a builtins.str, expected an openvino.Core"):
        add_extension("CPU")
    with pytest.raises(ValueError, match="`threads` must be a number of threads, 1 or more, found 0"):
        add_extension(openvino.Core(), threads=0)


@pytest.mark.parametrize(
    ("stand_in", "words"),
    [("sys.modules['openvino'] = None", "pip install openvino"), ("del openvino.Op", "pip install --upgrade openvino")],
)
def test_without_openvino_the_import_says_what_to_install(stand_in: str, words: str) -> None:
    program = f"import sys, openvino\n{stand_in}\nimport msdeform.openvino"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 1 and "ImportError: `msdeform.openvino` needs" in found.stderr
    assert words in found.stderr
