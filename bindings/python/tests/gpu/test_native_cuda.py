"""The operators on a GPU without Python: native kernels in the dispatcher, in compiled and CUDA graphs, and in C++."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msdeform.aoti
import msdeform.operator
import pytest
import torch
from aoti_example import run_example
from msdeform import _kernels
from msdeform._operators import FUSED, PLAIN
from oracle import BOUNDS, assert_close, make_case, reference, reference_gradients
from torch import Tensor

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(TORCH < (2, 10), reason="torch 2.10 has the C interface that the kernels use")

FAST = [torch.float32, torch.float16, torch.bfloat16]
LEVELS = [9, 12, 0, 3, 5, 6, 108, 3, 1, 3, 138, 3]
WANTED = ([True, True, True], [False, True, False], [True, False, False])
OPERATOR, GRADIENT = torch.ops.msdeform.ms_deform_attn, torch.ops.msdeform.ms_deform_attn_backward
FROM_OFFSETS = torch.ops.msdeform.ms_deform_attn_from_offsets
FROM_OFFSETS_GRADIENT = torch.ops.msdeform.ms_deform_attn_from_offsets_backward
# offset_scale, anchors, softmax, nearest.
RULE = (0.5, False, True, False)


@pytest.fixture
def _no_kernel_in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls of the kernels in Python fail."""

    def called(*_: Any, **__: Any) -> Any:
        raise AssertionError("a kernel in Python was called")

    for name in ("compute_forward", "compute_backward"):
        monkeypatch.setattr(_kernels, name, called)
    yield


def strided(tensor: Tensor) -> Tensor:
    """The same numbers with a gap after each."""
    return torch.stack([tensor, torch.full_like(tensor, torch.nan)], -1)[..., 0]


def equal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize("dtype", [*FAST, torch.float64], ids=str)
def test_native_kernels_compute_what_those_in_python_do(dtype: torch.dtype) -> None:
    tensors = [tensor.to(dtype) for tensor in make_case(device="cuda").tensors]
    expected = _kernels.compute_forward(PLAIN, tensors, LEVELS, ())
    upstream = torch.randn_like(expected)
    for given in (tensors, [strided(tensor) for tensor in tensors]):
        assert torch.equal(OPERATOR(*given, LEVELS), expected)
        for wanted in WANTED:
            # Kernels may differ by the strides of this one.
            for gradient in (upstream, strided(upstream), upstream[:1].expand(2, -1, -1)):
                exact = _kernels.compute_backward(PLAIN, gradient, tensors, LEVELS, (), wanted, True)
                assert equal(GRADIENT(gradient, *given, LEVELS, wanted, True), exact)


@pytest.mark.parametrize("dtype", [*FAST, torch.float64], ids=str)
def test_native_kernels_from_offsets_do_too(dtype: torch.dtype) -> None:
    case = make_case(device="cuda")
    references = torch.rand(*case.locations.shape[:2], 3, 2, device="cuda")
    tensors = [tensor.to(dtype) for tensor in (case.value, references, case.locations, case.weights)]
    expected = _kernels.compute_forward(FUSED, tensors, LEVELS, RULE)
    upstream = torch.randn_like(expected)
    # One projection of offsets and logits, and references that are the same for all images.
    rows = torch.cat([tensors[2].flatten(2), tensors[3].flatten(2)], dim=-1)
    views = [
        tensors[0],
        tensors[1][:1].expand(2, -1, -1, -1),
        rows[..., : tensors[2][0, 0].numel()].view(tensors[2].shape),
        rows[..., tensors[2][0, 0].numel() :].view(tensors[3].shape),
    ]
    for given in (tensors, [strided(tensor) for tensor in tensors]):
        assert torch.equal(FROM_OFFSETS(*given, LEVELS, *RULE), expected)
        for wanted in ([True] * 4, [True, False, False, True]):
            for gradient in (upstream, strided(upstream)):
                exact = _kernels.compute_backward(FUSED, gradient, tensors, LEVELS, RULE, wanted, True)
                assert equal(FROM_OFFSETS_GRADIENT(gradient, *given, LEVELS, *RULE, wanted, True), exact)
    exact = _kernels.compute_forward(FUSED, views, LEVELS, RULE)
    assert torch.equal(FROM_OFFSETS(*views, LEVELS, *RULE), exact)


def attend(value: Tensor, locations: Tensor, weights: Tensor, shapes: Any) -> Tensor:
    output: Tensor = msdeform.ms_deform_attn(value, shapes, None, locations, weights)
    return output


@pytest.mark.usefixtures("_no_kernel_in_python")
@pytest.mark.parametrize("dtype", FAST, ids=str)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_graph_calls_the_native_kernels(dtype: torch.dtype, mode: str) -> None:
    torch._dynamo.reset()
    case = make_case(dtype=dtype, device="cuda").requires_grad()
    shapes = [tuple(shape) for shape in case.shapes]
    compiled = torch.compile(lambda *given: attend(*given, shapes) * 2, fullgraph=True, mode=mode)
    for _ in range(3):
        output = compiled(*case.tensors)
        assert_close(output / 2, reference(case), BOUNDS[dtype])
        upstream = torch.randn_like(output)
        found = torch.autograd.grad(output, case.tensors, upstream)
        for gradient, exact in zip(found, reference_gradients(case, upstream), strict=True):
            assert_close(gradient / 2, exact, BOUNDS[dtype])


@pytest.mark.usefixtures("_no_kernel_in_python")
def test_a_compiled_layer_from_offsets_calls_them_and_has_its_gradients() -> None:
    torch._dynamo.reset()
    layer = msdeform.MSDeformAttn(d_model=64, n_levels=2, n_heads=4, n_points=4).cuda()
    shapes = [(20, 30), (10, 15)]
    given = torch.randn(1, 21, 64), torch.rand(1, 21, 2, 2), torch.randn(1, 750, 64)
    exact = layer.cpu().double()(*(tensor.double() for tensor in given), shapes)
    exact_gradients = [gradient.clone() for gradient in torch.autograd.grad(exact.sum(), list(layer.parameters()))]
    layer = layer.float().cuda()
    compiled = torch.compile(lambda *tensors: layer(*tensors, shapes), fullgraph=True)
    output = compiled(*(tensor.cuda() for tensor in given))
    assert_close(output.cpu(), exact, 1e-4)
    gradients = torch.autograd.grad(output.sum(), list(layer.parameters()))
    for found, expected in zip(gradients, exact_gradients, strict=True):
        assert_close(found.cpu(), expected, 1e-3)


def captured(work: Callable[[], Sequence[Tensor]]) -> tuple[torch.cuda.CUDAGraph, Sequence[Tensor]]:
    """What work does on a stream of its own, kernels compiled before, as a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    return graph, found


def test_cuda_graphs_contain_native_calls_with_their_workspace() -> None:
    case = make_case(device="cuda", dtype=torch.float16)
    upstream = torch.randn(2, 11, 32, device="cuda", dtype=torch.float16)

    def work() -> Sequence[Tensor]:
        with torch.inference_mode():
            output = OPERATOR(*case.tensors, LEVELS)
            return output, *GRADIENT(upstream, *case.tensors, LEVELS, [True] * 3, True)

    graph, found = captured(work)
    for _ in range(3):
        case.value.copy_(torch.randn_like(case.value))
        upstream.copy_(torch.randn_like(upstream))
        # Memory that the capture did not own may be somebody's by now.
        torch.full((1 << 22,), torch.nan, device="cuda")
        graph.replay()
        torch.cuda.synchronize()
        assert equal([tensor.clone() for tensor in found], [tensor.clone() for tensor in work()])
        assert_close(found[0], reference(case), BOUNDS[torch.float16])


def test_native_calls_are_queued_on_the_current_stream() -> None:
    case, side = make_case(device="cuda"), torch.cuda.Stream()
    expected = OPERATOR(*case.tensors, LEVELS)
    late = torch.empty_like(case.value)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late.copy_(case.value)
        found = OPERATOR(late, case.locations, case.weights, LEVELS)
    side.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.skipif(TORCH < (2, 13), reason="torch 2.13 hands over arguments that may be missing")
def test_shapes_of_a_gpu_are_read_natively_and_not_under_capture() -> None:
    case = make_case(device="cuda")
    shapes = torch.tensor(case.shapes, device="cuda")
    assert torch.equal(OPERATOR(*case.tensors, shapes, None, None), OPERATOR(*case.tensors, LEVELS))
    with pytest.raises(RuntimeError, match="a CUDA graph is being captured"), torch.inference_mode():
        captured_graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured_graph):
            OPERATOR(*case.tensors, shapes, None, None)
    torch.cuda.synchronize()


def refusal(*arguments: Any) -> str:
    with torch.inference_mode(), pytest.raises(RuntimeError) as caught:
        OPERATOR(*arguments)
    return str(caught.value)


def test_native_kernels_refuse_in_our_words() -> None:
    case = make_case(device="cuda")
    assert "`levels` has 11 numbers" in refusal(*case.tensors, LEVELS[1:])
    said = refusal(case.value.long(), case.locations, case.weights, LEVELS)
    assert "`value` is torch.int64; expected torch.float32, float16" in said
    said = refusal(case.value, case.locations.cpu(), case.weights, LEVELS)
    assert "all tensors must be on one device, found `value` on cuda:0, `sampling_locations` on cpu" in said
    # Where Python is between the kernel and the caller, of the kind that it always was.
    with pytest.raises(ValueError, match="`levels` has 11 numbers"):
        OPERATOR(*case.tensors, LEVELS[1:])
    assert_close(OPERATOR(*case.tensors, LEVELS), reference(case), 1e-5)


def test_all_of_pytorch_being_deterministic_reaches_a_native_gradient() -> None:
    # Enough additions to few pixels that sums in another order have other bits, in the fast mode.
    case = make_case(device="cuda", shapes=((4, 4),), queries=4000, points=8, heads=8, channels=32)
    upstream = torch.randn(2, 4000, 256, device="cuda")
    levels = [4, 4, 0, 8]
    torch.use_deterministic_algorithms(True)
    try:
        runs = [GRADIENT(upstream, *case.tensors, levels, [True] * 3) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    exact = _kernels.compute_backward(PLAIN, upstream, case.tensors, levels, (), [True] * 3, True)
    assert all(equal(found, exact) for found in runs)


def test_a_package_of_aotinductor_runs_on_a_gpu_in_a_program_without_python(tmp_path: Path) -> None:
    try:
        msdeform.aoti.library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    exported, _ = run_example(tmp_path, "cuda")
    assert "ms_deform_attn.default" in exported and "from_offsets.default" in exported
