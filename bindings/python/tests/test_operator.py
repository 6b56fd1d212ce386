"""The operator among PyTorch's own: tracing, compilation, export, autocast, vmap, threads, processes."""

from __future__ import annotations

import dataclasses
import multiprocessing
import threading
from typing import Any

import msdeform
import pytest
import torch
from oracle import BOUNDS, Case, assert_close, make_case, needs_native_tensors, reference, reference_gradients
from torch import Tensor

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])

needs_2_5 = pytest.mark.skipif(TORCH < (2, 5), reason="torch 2.5 has it first")


def attend(value: Tensor, shapes: Any, locations: Tensor, weights: Tensor) -> Tensor:
    output: Tensor = msdeform.ms_deform_attn(value, shapes, None, locations, weights)
    return output


def levels_of(case: Case) -> list[int]:
    levels, start = [], 0
    counts = case.points or [case.locations.shape[4]] * len(case.shapes)
    for (height, width), count in zip(case.shapes, counts, strict=True):
        levels += [height, width, start, count]
        start += height * width
    return levels


attend(*[make_case().value, make_case().shapes, make_case().locations, make_case().weights])  # Registers it.
FORWARD = torch.ops.msdeform.ms_deform_attn
BACKWARD = torch.ops.msdeform.ms_deform_attn_backward


@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize("points", [3, [4, 1, 2]], ids=str)
def test_opcheck_in_full(points: Any, needs_grad: bool) -> None:
    case = make_case(points=points)
    case = case.requires_grad() if needs_grad else case
    torch.library.opcheck(FORWARD.default, (*case.tensors, levels_of(case)))
    shapes, starts = torch.tensor(case.shapes), torch.tensor(levels_of(case)[2::4])
    torch.library.opcheck(FORWARD.tensor_levels, (*case.tensors, shapes, starts, case.points), {"deterministic": True})


@pytest.mark.parametrize("wanted", [[True, True, True], [True, False, True], [False, True, False]], ids=str)
def test_opcheck_of_the_gradient(wanted: list[bool]) -> None:
    case = make_case()
    grad_output = torch.randn(2, 11, 32)
    torch.library.opcheck(BACKWARD.default, (grad_output, *case.tensors, levels_of(case), wanted))
    shapes = torch.tensor(case.shapes)
    arguments = (grad_output, *case.tensors, shapes, None, None, wanted)
    torch.library.opcheck(BACKWARD.tensor_levels, arguments)


def test_the_gradient_of_levels_in_tensors_is_the_same() -> None:
    case = make_case().requires_grad()
    output = FORWARD.tensor_levels(*case.tensors, torch.tensor(case.shapes), None, None)
    grad_output = torch.randn_like(output)
    found = torch.autograd.grad(output, case.tensors, grad_output)
    for gradient, exact in zip(found, reference_gradients(case, grad_output), strict=True):
        assert_close(gradient, exact, 1e-5)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["list", "tensor"])
def test_compiles_as_one_graph_and_trains(as_tensor: bool) -> None:
    torch._dynamo.reset()
    case = make_case().requires_grad()
    shapes: Any = torch.tensor(case.shapes) if as_tensor else case.shapes
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    output = compiled(case.value, shapes, case.locations, case.weights)
    assert_close(output, reference(case), 1e-5)
    grad_output = torch.randn_like(output)
    found = torch.autograd.grad(output, case.tensors, grad_output)
    for gradient, exact in zip(found, reference_gradients(case, grad_output), strict=True):
        assert_close(gradient, exact, 1e-5)


def test_compiles_with_inductor() -> None:
    if TORCH < (2, 6):
        pytest.importorskip("setuptools")
    torch._dynamo.reset()
    case = make_case()

    def block(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return attend(value * 2.0, case.shapes, locations, weights.softmax(-1)).relu()

    try:
        found = torch.compile(block, fullgraph=True)(*case.tensors)
    except Exception as error:
        if "compiler" in str(error).lower() and "not found" in str(error).lower():
            pytest.skip("inductor needs a C++ compiler")
        raise
    assert_close(found, block(*case.tensors), 1e-5)


def test_image_sizes_do_not_compile_again() -> None:
    torch._dynamo.reset()
    graphs = []

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def block(fine: Tensor, coarse: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        maps = (fine, coarse)
        shapes = [(level.shape[2], level.shape[3]) for level in maps]
        value = torch.cat([level.flatten(2).transpose(1, 2) for level in maps], dim=1)
        return attend(value.unflatten(-1, (4, 8)), shapes, locations, weights)

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=count)
    # Sizes that happen to be equal in the first call would be taken for the same size.
    for height, width, queries in ((18, 22, 17), (12, 7, 9), (6, 6, 11), (20, 13, 30)):
        fine, coarse = torch.randn(2, 32, height, width), torch.randn(2, 32, height // 2, width // 2)
        locations, weights = torch.rand(2, queries, 4, 2, 3, 2), torch.rand(2, queries, 4, 2, 3)
        found = compiled(fine, coarse, locations, weights)
        assert torch.equal(found, block(fine, coarse, locations, weights))
    assert len(graphs) == 1, f"{len(graphs)} graphs for four image sizes"


@pytest.mark.parametrize("as_tensor", [False, True], ids=["list", "tensor"])
def test_exports(as_tensor: bool) -> None:
    case = make_case()

    class Layer(torch.nn.Module):
        def forward(self, value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
            return attend(value, shapes if as_tensor else case.shapes, locations, weights)

    arguments = (case.value, torch.tensor(case.shapes), case.locations, case.weights)
    queries = torch.export.Dim("queries", min=2, max=4096)
    program = torch.export.export(Layer(), arguments, dynamic_shapes=({}, {}, {1: queries}, {1: queries}))
    names = [str(node.target) for node in program.graph.nodes]
    assert any("msdeform.ms_deform_attn" in name for name in names), names
    longer = make_case(queries=29)
    found = program.module()(longer.value, arguments[1], longer.locations, longer.weights)
    assert_close(found, reference(longer), 1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_jit_traces_run_with_other_sizes_and_train() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = msdeform.MSDeformAttn(d_model=16, n_levels=2, n_heads=2, n_points=2)

        def forward(self, query: Tensor, reference: Tensor, fine: Tensor, coarse: Tensor) -> Tensor:
            shapes = [level.shape[2:] for level in (fine, coarse)]
            pixels = torch.cat([level.flatten(2).transpose(1, 2) for level in (fine, coarse)], dim=1)
            output: Tensor = self.attention(query, reference, pixels, shapes)
            return output

    def inputs(queries: int, height: int, width: int) -> tuple[Tensor, ...]:
        maps = torch.randn(2, 16, height, width), torch.randn(2, 16, height // 2, width // 2)
        return torch.randn(2, queries, 16), torch.rand(2, queries, 2, 2), *maps

    layer = Layer()
    traced = torch.jit.trace(layer, inputs(5, 8, 6))
    assert "msdeform::ms_deform_attn" in str(traced.inlined_graph)
    other = inputs(7, 10, 4)
    output = traced(*other)
    assert_close(output, layer(*other), 1e-6)
    parameters = list(layer.parameters())
    found = torch.autograd.grad(output.sum(), parameters)
    for gradient, expected in zip(found, torch.autograd.grad(layer(*other).sum(), parameters), strict=True):
        assert_close(gradient, expected, 1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_jit_traces_of_the_function_keep_lists_and_tensors_of_shapes() -> None:
    case = make_case()
    for shapes in (case.shapes, torch.tensor(case.shapes)):
        traced = torch.jit.trace(
            lambda value, locations, weights, shapes=shapes: attend(value, shapes, locations, weights), case.tensors
        )
        longer = make_case(queries=29)
        assert_close(traced(*longer.tensors), reference(longer), 1e-5)


def test_fake_and_meta_tensors_have_shapes_only() -> None:
    case = make_case().to("meta")
    output = attend(case.value, case.shapes, case.locations, case.weights)
    assert output.device.type == "meta" and output.shape == (2, 11, 32)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = make_case()
        tensors = [mode.from_tensor(tensor) if not hasattr(tensor, "fake_mode") else tensor for tensor in fake.tensors]
        output = attend(tensors[0], fake.shapes, tensors[1], tensors[2])
    assert output.shape == (2, 11, 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_computes_values_in_its_format_and_keeps_locations(dtype: torch.dtype) -> None:
    case = make_case().requires_grad()
    with torch.autocast("cpu", dtype=dtype):
        output = attend(case.value, case.shapes, case.locations, case.weights)
    assert output.dtype == dtype
    half = Case(case.value.detach().to(dtype), case.shapes, case.locations, case.weights)
    assert_close(output, reference(half), BOUNDS[dtype])
    output.sum().backward()
    for tensor in case.tensors:
        assert tensor.grad is not None and tensor.grad.dtype == torch.float32
    double = case.to(torch.float64)
    with torch.autocast("cpu", dtype=dtype):
        exact = attend(double.value, case.shapes, double.locations, double.weights)
    assert exact.dtype == torch.float64


@needs_2_5
def test_vmap_is_a_longer_batch() -> None:
    case = make_case(batch=6)
    value = case.value.unflatten(0, (3, 2))
    locations, weights = case.locations.unflatten(0, (3, 2)), case.weights.unflatten(0, (3, 2))

    def one(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return attend(value, case.shapes, locations, weights)

    found = torch.vmap(one)(value, locations, weights)
    expected = attend(case.value, case.shapes, case.locations, case.weights)
    assert torch.equal(found.flatten(0, 1), expected)
    shared = torch.vmap(one, in_dims=(None, 0, 0))(value[0], locations, weights)
    assert torch.equal(shared[1], one(value[0], locations[1], weights[1]))
    last = torch.vmap(one, in_dims=(0, -1, 0))(value, locations.movedim(0, -1), weights)
    assert torch.equal(last, found)


@needs_2_5
def test_vmap_over_shapes_is_refused_in_words() -> None:
    case = make_case()

    def one(shapes: Tensor) -> Tensor:
        output: Tensor = FORWARD.tensor_levels(*case.tensors, shapes, None, None)
        return output

    with pytest.raises(NotImplementedError, match="one call has one list of levels"):
        torch.vmap(one)(torch.tensor([case.shapes, case.shapes]))


def test_the_profiler_and_dispatch_modes_see_every_call() -> None:
    case = make_case()
    with torch.profiler.profile() as profile:
        attend(case.value, case.shapes, case.locations, case.weights)
    assert any(event.key == "msdeform::ms_deform_attn" for event in profile.key_averages())


def test_a_pending_negation_is_resolved() -> None:
    case = make_case()
    negated = torch.complex(torch.zeros_like(case.value), -case.value).conj().imag
    assert negated.is_neg()
    found = attend(negated, case.shapes, case.locations, case.weights)
    assert torch.equal(found, attend(case.value, case.shapes, case.locations, case.weights))


@needs_native_tensors
def test_only_ordinary_calls_stay_in_the_native_half() -> None:
    from msdeform import _autograd, _native
    from msdeform._operators import PLAIN

    case = make_case()
    value, locations, weights = case.tensors
    levels = levels_of(case)

    def attend(*arguments: Any) -> Any:
        *tensors, shapes = arguments
        are_shapes = not isinstance(shapes, list) or isinstance(shapes[0], tuple)
        return _native.torch_forward(tuple(tensors), shapes, are_shapes, None, False, True)

    output = attend(value, locations, weights, levels)
    assert_close(output, reference(case), 1e-5)
    assert torch.equal(output, attend(value, locations, weights, case.shapes))
    grad_output = torch.randn_like(output)
    found = _native.torch_backward(grad_output, case.tensors, levels, None, (False, True, True), False)
    expected = reference_gradients(case, grad_output)
    assert found[0] is None
    leaves = [tensor.clone().requires_grad_(at > 0) for at, tensor in enumerate(case.tensors)]
    with pytest.MonkeyPatch.context() as refusing:
        # What is not ordinary would go there.
        refusing.setattr(PLAIN, "numbers", dataclasses.replace(PLAIN.numbers, forward=None, backward=None))
        refusing.setattr(_autograd, "recorded", None)
        recorded = msdeform.ms_deform_attn(leaves[0], case.shapes, None, leaves[1], leaves[2])
        recorded.backward(grad_output)
    assert torch.equal(recorded, output) and leaves[0].grad is None
    assert torch.equal(leaves[1].grad, found[1]) and torch.equal(leaves[2].grad, found[2])
    assert_close(found[1], expected[1], 1e-5)
    assert_close(found[2], expected[2], 1e-5)
    transposed = value.transpose(1, 2).contiguous().transpose(1, 2)
    negated = torch.complex(torch.zeros_like(value), -value).conj().imag
    for other in (
        transposed,
        negated,
        torch.nn.Parameter(value),
        value[:0],
        value[0],
        value.long(),
        value.to("meta"),
        3,
    ):
        for shapes in (levels, case.shapes):
            assert attend(other, locations, weights, shapes) is None
    for shapes in ([(9, 12.0), (5, 6), (1, 3)], [(9, 12, 1)] * 3, "shapes", levels, torch.tensor(case.shapes)):
        assert _native.torch_forward(case.tensors, shapes, True, None, False, True) is None
    for wrong in (case.shapes, [9, 12, True, 3], torch.tensor(levels)):
        assert _native.torch_forward(case.tensors, wrong, False, None, False, True) is None
    assert attend(value, locations.half(), weights, case.shapes) is None
    with torch.profiler.profile():
        assert attend(value, locations, weights, case.shapes) is None
        assert attend(value, locations, weights, levels) is None
    short = torch.randn(2, 10, 32)
    assert _native.torch_backward(short, case.tensors, levels, None, (True, True, True), False) is None


def test_threads_compute_side_by_side() -> None:
    case = make_case(queries=200, channels=32)
    expected = attend(case.value, case.shapes, case.locations, case.weights)
    wrong = []

    def work() -> None:
        for _ in range(20):
            if not torch.equal(attend(case.value, case.shapes, case.locations, case.weights), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_process_computes_although_the_parent_has_threads() -> None:
    """What the workers of a data loader do. The child calls nothing of PyTorch that would use PyTorch's own
    threads: those do not survive a fork."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        case = make_case(queries=200, channels=32)
        expected = attend(case.value, case.shapes, case.locations, case.weights)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()

        def work() -> None:
            output = attend(case.value, case.shapes, case.locations, case.weights)
            queue.put(output.numpy().tobytes())

        child = context.Process(target=work, daemon=True)
        child.start()
        assert queue.get(timeout=60) == expected.numpy().tobytes()
        child.join()
    finally:
        torch.set_num_threads(before)


def test_deterministic_algorithms_are_no_reason_to_refuse() -> None:
    case = make_case().requires_grad()
    torch.use_deterministic_algorithms(True)
    try:
        output = attend(case.value, case.shapes, case.locations, case.weights)
        output.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert case.value.grad is not None
