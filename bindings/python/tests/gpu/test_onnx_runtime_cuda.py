"""The custom operators on the CUDA provider of ONNX Runtime (package onnxruntime-gpu): on its stream, in its memory.

`session.disable_cpu_ep_fallback` makes a session refuse a model of which it would give a node to the CPU, so that
what runs here ran on the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from msdeform.onnx import library_path
from onnx_calls import GIVEN, OFFSETS, TYPES, Array, assert_within, expected, helper, onnxruntime, random_inputs

numpy_helper = pytest.importorskip("onnx.numpy_helper")
CUDA = "CUDAExecutionProvider"
if CUDA not in onnxruntime.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA provider: install onnxruntime-gpu", allow_module_level=True)

BOUNDS = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 1e-3}
LEVELS = ((20, 30), (10, 15), (5, 8))


def graph_of(nodes: Sequence[Any], inputs: Mapping[str, Array], constants: Mapping[str, Array] | None = None) -> bytes:
    """A model of any sizes; what is a constant is no input."""
    constants = constants or {}
    given = [
        helper.make_tensor_value_info(key, TYPES[array.dtype], [f"{key}_{axis}" for axis in range(array.ndim)])
        for key, array in inputs.items()
        if key not in constants
    ]
    output = helper.make_tensor_value_info("output", TYPES[inputs["value"].dtype], None)
    initial = [numpy_helper.from_array(array, key) for key, array in constants.items()]
    graph = helper.make_graph(list(nodes), "attention", given, [output], initial)
    domains = ["msdeform", "mmdeploy", "trt.plugins"]
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    found: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return found


def one_node(name: tuple[str, str], inputs: Mapping[str, Array], **attributes: Any) -> bytes:
    return graph_of([helper.make_node(name[1], list(inputs), ["output"], domain=name[0], **attributes)], inputs)


def session(model: bytes, strict: bool = True, **provider: Any) -> Any:
    """On the GPU; `strict` refuses to run any node elsewhere."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library_path())
    options.log_severity_level = 4
    if strict:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings = {key: str(value) for key, value in provider.items()}
    found = onnxruntime.InferenceSession(model, options, [(CUDA, settings)])
    assert found.get_providers()[0] == CUDA, "the CUDA provider could not be made"
    return found


def on_processor(model: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library_path())
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def inputs_of(
    seed: int = 0,
    batch: int = 2,
    queries: int = 300,
    levels: tuple[tuple[int, int], ...] = LEVELS,
    dtype: Any = np.float32,
    sampling: Any = None,
    integers: Any = np.int64,
) -> dict[str, Array]:
    sizes = (seed, batch, queries, levels, 8, 32, 4)
    return random_inputs(*sizes, dtype, sampling, integers, outside=0.1, heaviest=0.2)


def from_offsets(seed: int, references: tuple[int, ...], dtype: Any, sampling: Any, reference: Any) -> dict[str, Array]:
    inputs, random = inputs_of(seed, dtype=dtype), np.random.default_rng(seed)
    shape = inputs["attention_weights"].shape
    return {
        **{key: inputs[key] for key in ("value", "spatial_shapes", "level_start_index")},
        "reference_points": random.uniform(0.1, 0.9, references).astype(reference),
        "sampling_offsets": random.uniform(-2, 2, (*shape, 2)).astype(sampling),
        "attention_logits": random.standard_normal(shape).astype(sampling),
    }


def assert_close(found: Array, wanted: Array, dtype: Any) -> None:
    assert_within(BOUNDS, found, wanted, dtype)


@pytest.mark.parametrize(
    ("dtype", "sampling"), [(np.float32, np.float32), (np.float16, np.float16), (np.float16, np.float32)]
)
@pytest.mark.parametrize("name", GIVEN, ids=lambda name: name[1])
def test_every_name_computes_on_the_gpu(name: tuple[str, str], dtype: Any, sampling: Any) -> None:
    if name[0] == "trt.plugins" and dtype is not sampling:
        return  # The plugin has one type for all.
    inputs = inputs_of(dtype=dtype, sampling=sampling, integers=GIVEN[name])
    [found] = session(one_node(name, inputs)).run(None, inputs)
    wanted = expected(inputs)
    assert_close(found, wanted.reshape(*wanted.shape[:2], 8, 32) if name[0] == "trt.plugins" else wanted, dtype)


@pytest.mark.parametrize(
    "formats",
    [
        (np.float32, np.float32, np.float32),
        (np.float16, np.float16, np.float16),
        (np.float16, np.float16, np.float32),
        (np.float16, np.float32, np.float32),
    ],
)
@pytest.mark.parametrize("references", [(2, 300, 3, 2), (2, 300, 1, 4), (1, 300, 3, 2), (2, 1, 1, 4), (1, 1, 3, 4)])
def test_from_offsets_computes_as_on_the_processor(references: tuple[int, ...], formats: tuple[Any, Any, Any]) -> None:
    inputs = from_offsets(3, references, *formats)
    model = one_node(OFFSETS, inputs)
    [found] = session(model).run(None, inputs)
    [wanted] = on_processor(model).run(None, inputs)
    assert_close(found, wanted.astype(np.float64), formats[0])


def test_one_session_takes_every_batch_image_size_and_number_of_queries() -> None:
    runner = session(one_node(("msdeform", "MSDeformAttn"), inputs_of()))
    for sizes in [{}, {"batch": 1, "queries": 7}, {"levels": ((8, 8), (4, 4))}, {"batch": 5}] * 2:
        inputs = inputs_of(**sizes)  # type: ignore[arg-type]
        [found] = runner.run(None, inputs)
        assert_close(found, expected(inputs), np.float32)


def test_sizes_of_zero_are_fine() -> None:
    runner = session(one_node(("msdeform", "MSDeformAttn"), inputs_of()))
    for sizes in [{"batch": 0}, {"queries": 0}]:
        [found] = runner.run(None, inputs_of(**sizes))
        assert found.size == 0


def test_types_that_no_kernel_of_the_gpu_has_stay_on_the_processor() -> None:
    inputs = inputs_of(dtype=np.float16, sampling=np.float16)
    inputs["attention_weights"] = inputs["attention_weights"].astype(np.float32)
    model = one_node(("msdeform", "MSDeformAttn"), inputs)
    [found] = session(model, strict=False).run(None, inputs)
    assert_close(found, expected(inputs), np.float16)
    with pytest.raises(Exception, match="fallback"):
        session(model)


def test_wrong_inputs_are_errors_in_words_and_the_session_goes_on() -> None:
    inputs = inputs_of()
    runner = session(one_node(("msdeform", "MSDeformAttn"), inputs))
    wrong = {**inputs, "level_start_index": np.array([0, 1, 2])}
    with pytest.raises(Exception, match="level_start_index"):
        runner.run(None, wrong)
    [found] = runner.run(None, inputs)
    assert_close(found, expected(inputs), np.float32)


def scaled_model(inputs: Mapping[str, Array]) -> bytes:
    """Standard nodes before and after, whose results are only right in the order of one stream."""
    names = ["doubled", *list(inputs)[1:]]
    nodes = [
        helper.make_node("Mul", ["value", "two"], ["doubled"]),
        helper.make_node("MSDeformAttn", names, ["attended"], domain="msdeform"),
        helper.make_node("Add", ["attended", "two"], ["output"]),
    ]
    constants = {key: inputs[key] for key in ("spatial_shapes", "level_start_index")}
    return graph_of(nodes, inputs, {"two": np.float32(2) * np.ones(1, np.float32), **constants})


def bind(runner: Any, inputs: Mapping[str, Any], output: torch.Tensor) -> Any:
    binding = runner.io_binding()
    for key, tensor in inputs.items():
        binding.bind_input(key, "cuda", 0, np.float32, tuple(tensor.shape), tensor.data_ptr())
    binding.bind_output("output", "cuda", 0, np.float32, tuple(output.shape), output.data_ptr())
    return binding


FLOATS = ("value", "sampling_locations", "attention_weights")


def test_it_runs_on_the_stream_of_the_session_between_other_nodes() -> None:
    inputs = inputs_of(queries=2000, levels=((100, 150), (50, 75), (25, 38)))
    stream = torch.cuda.Stream()
    runner = session(scaled_model(inputs), user_compute_stream=stream.cuda_stream, do_copy_in_default_stream=1)
    tensors = {key: torch.from_numpy(inputs[key]).cuda() for key in FLOATS}
    wanted = 2 * expected(inputs) + 2
    output = torch.full(wanted.shape, float("nan"), device="cuda")
    given = {key: torch.empty_like(tensor) for key, tensor in tensors.items()}
    binding = bind(runner, given, output)
    torch.cuda.synchronize()
    for factor in (1.0, 3.0, 0.5):
        with torch.cuda.stream(stream):
            # Work that the operator must wait for, on the same stream and nowhere else.
            torch.cuda._sleep(20_000_000)
            for key, tensor in given.items():
                tensor.copy_(tensors[key] * (factor if key == "value" else 1.0))
        runner.run_with_iobinding(binding)
        torch.cuda.synchronize()
        assert_close(output.cpu().numpy(), factor * (wanted - 2) + 2, np.float32)


def test_runs_from_several_threads_do_not_disturb_each_other() -> None:
    every = [inputs_of(seed, queries=200 + 50 * seed) for seed in range(4)]
    wanted = [expected(inputs) for inputs in every]
    runner = session(one_node(("msdeform", "MSDeformAttn"), every[0]))
    failed: list[BaseException] = []

    def run(index: int) -> None:
        try:
            for _ in range(20):
                [found] = runner.run(None, every[index])
                assert_close(found, wanted[index], np.float32)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(every))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_it_is_captured_in_a_cuda_graph() -> None:
    inputs = inputs_of()
    runner = session(scaled_model(inputs), enable_cuda_graph=1)
    given = {key: torch.from_numpy(inputs[key]).cuda() for key in FLOATS}
    wanted = expected(inputs)
    output = torch.full(wanted.shape, float("nan"), device="cuda")
    binding = bind(runner, given, output)
    for factor in (1.0, 1.0, 1.0, 4.0):  # Captured in one of the first runs, replayed from then on.
        given["value"].copy_(torch.from_numpy(inputs["value"]) * factor)
        torch.cuda.synchronize()
        runner.run_with_iobinding(binding)
        torch.cuda.synchronize()
        assert_close(output.cpu().numpy(), 2 * factor * wanted + 2, np.float32)
