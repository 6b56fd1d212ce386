"""The operator on a GPU: results, gradients, streams, graphs, devices, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msdeform
import pytest
import torch
from oracle import BOUNDS, Case, assert_close, make_case, needs_native_tensors, reference, reference_gradients
from torch import Tensor

FAST = [torch.float32, torch.float16, torch.bfloat16]

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "as models have it": {
        "heads": 8,
        "channels": 32,
        "queries": 300,
        "points": 4,
        "shapes": ((40, 50), (20, 25)),
    },
    "odd channels": {"channels": 33, "heads": 3},
    "one of everything": {
        "batch": 1,
        "shapes": ((1, 1),),
        "heads": 1,
        "channels": 1,
        "queries": 1,
        "points": 1,
    },
    "points per level": {"points": [4, 1, 2]},
    "many levels": {"shapes": tuple((size, size + 1) for size in range(1, 19)), "points": 1},
}


def attend(case: Case, **keywords: Any) -> Tensor:
    output: Tensor = msdeform.ms_deform_attn(
        case.value, case.shapes, None, case.locations, case.weights, points=case.points, **keywords
    )
    return output


@pytest.mark.parametrize("dtype", FAST, ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_output_and_gradients_are_within_the_bound(name: str, dtype: torch.dtype, deterministic: bool) -> None:
    case = make_case(dtype=dtype, device="cuda", **CASES[name]).requires_grad()
    output = attend(case, deterministic=deterministic)
    assert output.dtype == dtype and output.is_cuda
    assert_close(output, reference(case), BOUNDS[dtype])
    grad_output = torch.randn_like(output)
    found = torch.autograd.grad(output, case.tensors, grad_output)
    for what, gradient, exact in zip(
        ("value", "locations", "weights"), found, reference_gradients(case, grad_output), strict=True
    ):
        assert_close(gradient, exact, BOUNDS[dtype], what)


@needs_native_tensors
def test_ordinary_calls_never_leave_the_native_half() -> None:
    from msdeform import _autograd, _native, operator

    case = make_case(device="cuda")
    attend(case)
    levels = [9, 12, 0, 3, 5, 6, 108, 3, 1, 3, 138, 3]
    output = _native.torch_forward(case.tensors, case.shapes, True, None, False, False)
    assert torch.equal(output, _native.torch_forward(case.tensors, levels, False, None, False, False))
    assert_close(output, reference(case), 1e-5)
    grad_output = torch.randn_like(output)
    leaves = [tensor.clone().requires_grad_() for tensor in case.tensors]
    with pytest.MonkeyPatch.context() as refusing:
        refusing.setattr(_autograd, "_gradients", None)  # What is not ordinary would go there.
        refusing.setattr(operator, "call", None)
        recorded = msdeform.ms_deform_attn(leaves[0], case.shapes, None, leaves[1], leaves[2])
        found = torch.autograd.grad(recorded, leaves, grad_output)
    for ours, theirs in zip(found, reference_gradients(case, grad_output), strict=True):
        assert_close(ours, theirs, BOUNDS[torch.float32])
    wanted = (True, False, True)
    # A stride of 0, as `sum().backward()` has it, is read in place too.
    for given in (grad_output, grad_output[:1].expand(2, -1, -1)):
        found = _native.torch_backward(given, case.tensors, levels, None, wanted, True)
        expected = reference_gradients(case, given)
        assert found[1] is None
        assert_close(found[0], expected[0], 1e-5)
        assert_close(found[2], expected[2], 1e-5)
    apart = (case.value, case.locations, case.weights.cpu())
    for given in (apart, tuple(tensor.double() for tensor in case.tensors)):
        assert _native.torch_forward(given, levels, False, None, False, False) is None


def test_float64_by_the_reference() -> None:
    case = make_case(dtype=torch.float64, device="cuda").requires_grad()
    output = attend(case)
    assert_close(output, reference(case), BOUNDS[torch.float64])
    output.sum().backward()
    assert case.value.grad is not None and case.value.grad.is_cuda


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_and_mixed_formats(dtype: torch.dtype) -> None:
    case = make_case(device="cuda").requires_grad()
    with torch.autocast("cuda", dtype=dtype):
        output = attend(case)
    half = Case(case.value.detach().to(dtype), case.shapes, case.locations, case.weights)
    assert output.dtype == dtype
    assert_close(output, reference(half), BOUNDS[dtype])
    output.sum().backward()
    for tensor in case.tensors:
        assert tensor.grad is not None and tensor.grad.dtype == torch.float32


@pytest.mark.parametrize("mask", range(1, 8))
def test_subsets_of_gradients(mask: int) -> None:
    case = make_case(device="cuda")
    grad_output = torch.randn(2, 11, 32, device="cuda")
    expected = reference_gradients(case, grad_output)
    tensors = [
        tensor.detach().clone().requires_grad_(bool(mask >> index & 1)) for index, tensor in enumerate(case.tensors)
    ]
    attend(Case(tensors[0], case.shapes, tensors[1], tensors[2])).backward(grad_output)
    for index, tensor in enumerate(tensors):
        assert (tensor.grad is not None) == bool(mask >> index & 1)
        if tensor.grad is not None:
            assert_close(tensor.grad, expected[index], 1e-5)


def test_views_are_read_in_place_and_stride_zero_gradients_too() -> None:
    case = make_case(device="cuda")
    wide = torch.randn(2, case.value.shape[1], 4, 16, device="cuda")
    for view in (
        wide[..., 8:],
        case.value.transpose(1, 2).contiguous().transpose(1, 2),
        wide[:1, ..., :8].expand(2, -1, -1, -1),
    ):
        assert not view.is_contiguous()
        leaf = view.detach().requires_grad_()
        output = msdeform.ms_deform_attn(leaf, case.shapes, None, case.locations, case.weights)
        exact = Case(view.contiguous(), case.shapes, case.locations, case.weights)
        assert_close(output, reference(exact), 1e-5)
        output.sum().backward()
        expected = reference_gradients(exact, torch.ones(2, 11, 32, device="cuda"))[0]
        assert leaf.grad is not None
        assert_close(leaf.grad, expected, 1e-5)


def test_deterministic_gradients_repeat_bit_for_bit() -> None:
    case = make_case(device="cuda", queries=2000, shapes=((6, 6),), heads=8, channels=32)
    runs = []
    for _ in range(3):
        run = case.requires_grad()
        grads = torch.autograd.grad(attend(run, deterministic=True).square().sum(), run.tensors)
        runs.append(grads)
    torch.use_deterministic_algorithms(True)
    try:
        run = case.requires_grad()
        output = attend(run)
        runs.append(torch.autograd.grad(output, run.tensors, 2 * output.detach()))
    finally:
        torch.use_deterministic_algorithms(False)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_work_is_queued_on_the_current_stream() -> None:
    case = make_case(device="cuda", queries=3000)
    expected = reference(case)
    attend(case)  # Compiling takes longer than the stream is kept busy.
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)  # About half a second: other processes may hold this one up.
        late = case.value * 1.0
        output = msdeform.ms_deform_attn(late, case.shapes, None, case.locations, case.weights)
    assert not stream.query(), "the call waited for the stream"
    torch.cuda.current_stream().wait_stream(stream)
    assert_close(output, expected, 1e-5)


def test_a_list_or_a_cpu_tensor_of_shapes_costs_no_synchronisation() -> None:
    case = make_case(device="cuda").requires_grad()
    on_gpu = torch.tensor(case.shapes, device="cuda")
    attend(case).sum().backward()
    msdeform.ms_deform_attn(case.value, on_gpu, None, case.locations, case.weights)  # Read once, remembered.
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for shapes in (case.shapes, torch.tensor(case.shapes), on_gpu):
            output = msdeform.ms_deform_attn(case.value, shapes, None, case.locations, case.weights)
            output.backward(torch.ones_like(output))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_cuda_graphs_capture_forward_and_backward() -> None:
    case = make_case(device="cuda").requires_grad()
    grad_output = torch.randn(2, 11, 32, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            torch.autograd.grad(attend(case), case.tensors, grad_output)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = attend(case)
        gradients = torch.autograd.grad(output, case.tensors, grad_output)
    fresh = make_case(device="cuda", batch=2)
    with torch.no_grad():
        case.value.copy_(fresh.value * 3.0)
        output.fill_(float("nan"))
        for gradient in gradients:
            gradient.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert_close(output, reference(case), 1e-5)
    for gradient, exact in zip(gradients, reference_gradients(case, grad_output), strict=True):
        assert_close(gradient, exact, 1e-5)


def fed_steps(case: Case, sources: list[Tensor], between: Callable[[], None]) -> list[Tensor]:
    """Training steps on values, and with gradients, that a kernel has made just before. Bits that repeat."""
    results: list[Tensor] = []
    for source in sources:
        value = (source * 2.0).requires_grad_()
        between()
        output = msdeform.ms_deform_attn(value, case.shapes, None, case.locations, case.weights, deterministic=True)
        between()
        upstream = output.detach() * 0.5
        between()
        gradients = torch.autograd.grad(output, (value, case.locations, case.weights), upstream)
        between()
        results += [output.detach(), *gradients]
    return results


@pytest.mark.parametrize("queries", [300, 3000])
def test_launches_that_start_early_wait_for_what_feeds_them(queries: int) -> None:
    """Ours may be on the GPU before the kernel before them is done: in a stream, and in a graph with branches."""
    case = make_case(device="cuda", **{**CASES["as models have it"], "queries": queries}).requires_grad()
    sources = [torch.randn_like(case.value) for _ in range(12)]
    expected = fed_steps(case, sources, torch.cuda.synchronize)

    def nothing() -> None: ...

    for _ in range(3):
        results = fed_steps(case, sources, nothing)
        assert all(torch.equal(ours, exact) for ours, exact in zip(results, expected, strict=True))

    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    graph, half = torch.cuda.CUDAGraph(), len(sources) // 2
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=main):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            second = fed_steps(case, sources[half:], nothing)
        first = fed_steps(case, sources[:half], nothing)
        main.wait_stream(side)
        # What waits for both branches starts early, too.
        third = fed_steps(case, sources[:2], nothing)
    for _ in range(20):
        for result in (*first, *second, *third):
            result.fill_(float("nan"))
        graph.replay()
    torch.cuda.synchronize()
    of_third = expected[: len(third)]
    for ours, exact in zip((*first, *second, *third), (*expected, *of_third), strict=True):
        assert torch.equal(ours, exact)


def test_shapes_on_the_gpu_cannot_be_read_under_capture_and_say_so() -> None:
    case = make_case(device="cuda")
    attend(case)
    fresh = torch.tensor(case.shapes, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="as a list or as a CPU tensor"), torch.cuda.graph(graph):
        msdeform.ms_deform_attn(case.value, fresh, None, case.locations, case.weights)
    torch.cuda.synchronize()
    assert_close(attend(case), reference(case), 1e-5)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiles_with_inductor(mode: str) -> None:
    torch._dynamo.reset()
    case = make_case(device="cuda").requires_grad()
    compiled = torch.compile(
        lambda value, locations, weights: msdeform.ms_deform_attn(value * 2, case.shapes, None, locations, weights),
        fullgraph=True,
        mode=mode,
    )
    for _ in range(3):
        output = compiled(*case.tensors).clone()
    doubled = Case(case.value * 2, case.shapes, case.locations, case.weights)
    assert_close(output, reference(doubled), 1e-5)
    output = compiled(*case.tensors)
    found = torch.autograd.grad(output.sum(), case.tensors)
    expected = reference_gradients(doubled, torch.ones_like(output))
    assert_close(found[0], 2 * expected[0], 1e-5)


def test_tensors_of_two_devices_are_refused_by_name() -> None:
    case = make_case(device="cuda")
    with pytest.raises(ValueError, match="`attention_weights` on cpu"):
        msdeform.ms_deform_attn(case.value, case.shapes, None, case.locations, case.weights.cpu())
    for recorded in (True, False):
        # The CPU must not read a GPU address.
        value = case.value.cpu().requires_grad_(recorded)
        with pytest.raises(ValueError, match="`value` on cpu, `sampling_locations` on cuda:0"):
            msdeform.ms_deform_attn(value, case.shapes, None, case.locations, case.weights)
    assert_close(attend(case), reference(case), 1e-5)


def test_the_context_survives_bad_input() -> None:
    case = make_case(device="cuda")
    freed = case.value.clone()
    freed.untyped_storage().resize_(0)
    for value in (freed, case.value[:, :-1], case.value.long()):
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            msdeform.ms_deform_attn(value, case.shapes, None, case.locations, case.weights)
    torch.cuda.synchronize()
    assert_close(attend(case), reference(case), 1e-5)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_every_gpu_computes_whichever_is_current() -> None:
    for index in range(torch.cuda.device_count()):
        case = make_case(device=f"cuda:{index}").requires_grad()
        with torch.cuda.device((index + 1) % torch.cuda.device_count()):
            output = attend(case)
            assert output.device.index == index
            assert_close(output, reference(case), 1e-5)
            output.sum().backward()


def test_arrays_of_another_library_come_as_tensors() -> None:
    case = make_case(device="cuda")

    class OnlyDlpack:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.tensor.__dlpack__(**keywords)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    found = msdeform.ms_deform_attn(
        OnlyDlpack(case.value), case.shapes, None, OnlyDlpack(case.locations), OnlyDlpack(case.weights)
    )
    assert torch.equal(found, attend(case))


def test_device_info_and_bench_see_the_gpu() -> None:
    info = msdeform.device_info()
    assert info["cuda"]["driver"] and info["cuda"]["gpus"][0]["usable"]
    result = msdeform.bench("ddetr_dec", device="cuda:0", dtype="f16", seconds=0.05)
    assert result["passed"] and result["median_us"] > 0
