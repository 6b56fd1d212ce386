"""The operator from offsets on a GPU: against the float64 reference, and as models and PyTorch call it."""

from __future__ import annotations

from typing import Any

import msdeform
import pytest
import torch
from attention_layers import DEFORMABLE_DETR, RFDETR, ULTRALYTICS, Call, layer_of, make_call, runs
from msdeform import _autograd, _native, operator
from msdeform import ms_deform_attn_from_offsets as attend
from patched_models import CountCalls
from torch import Tensor

SHAPES = [(19, 23), (10, 12), (1, 6)]
PIXELS = sum(height * width for height, width in SHAPES)
REFERENCES = {"points": (3, 2), "boxes": (3, 4), "box": (1, 4), "anchors": (2, 2)}
BOUNDS = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def tensors(
    kind: str, dtype: torch.dtype, *, queries: int = 70, points: int = 4, channels: int = 32, seed: int = 0
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    batch, heads, levels = 2, 8, len(SHAPES)
    found = {
        "value": random(batch, PIXELS, heads, channels) - 0.5,
        "reference_points": 0.2 + 0.6 * random(batch, queries, *REFERENCES[kind]),
        "sampling_offsets": 5 * random(batch, queries, heads, levels, points, 2) - 2.5,
        "attention_logits": 4 * random(batch, queries, heads, levels, points) - 2,
    }
    formats = {name: torch.float32 if name == "reference_points" else dtype for name in found}
    return {name: tensor.to(formats[name]).cuda() for name, tensor in found.items()}


def with_gradients(given: dict[str, Tensor], upstream: Tensor, wanted: list[str], **options: Any) -> dict[str, Tensor]:
    leaves = {name: tensor.detach().clone().requires_grad_(name in wanted) for name, tensor in given.items()}
    output = attend(spatial_shapes=SHAPES, **leaves, **options)
    output.backward(upstream.to(output))
    assert all((tensor.grad is not None) == (name in wanted) for name, tensor in leaves.items())
    return {"output": output.detach(), **{name: leaves[name].grad for name in wanted}}


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], bound: float) -> None:
    for name, tensor in found.items():
        theirs = expected[name]
        differences, scale = (tensor.double().cpu() - theirs.cpu()).abs(), theirs.cpu().square().mean().sqrt()
        if name in ("reference_points", "sampling_offsets"):
            # Gradients of places jump from cell to cell, and some samples lie so near to a border that float32 sees
            # them in the next one: all but a few of them.
            error = (differences / scale).flatten().sort().values[: int(0.995 * differences.numel())].max()
            assert error < 20 * bound, f"{name}: {error}"
        else:
            error = differences.norm() / theirs.cpu().norm()
            assert error < bound, f"{name}: {error}"


ALL = ["value", "reference_points", "sampling_offsets", "attention_logits"]


@pytest.mark.parametrize("kind", list(REFERENCES))
@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize(("queries", "points", "channels"), [(70, 4, 32), (70, 3, 32), (900, 4, 32), (9, 5, 20)])
def test_output_and_gradients_are_those_of_float64(
    kind: str, dtype: torch.dtype, queries: int, points: int, channels: int
) -> None:
    given = tensors(kind, dtype, queries=queries, points=points, channels=channels)
    exact = {name: tensor.double().cpu() for name, tensor in given.items()}
    upstream = torch.rand(2, queries, 8 * channels).to(dtype).cuda()
    options: dict[str, Any] = {"anchors": kind == "anchors"}
    expected = with_gradients(exact, upstream.cpu(), ALL, **options)
    for wanted in (ALL, ["value"], ["sampling_offsets", "attention_logits"], ["reference_points"]):
        assert_near(with_gradients(given, upstream, wanted, **options), expected, BOUNDS[dtype])
    raw = with_gradients(exact, upstream.cpu(), ALL, softmax=False, offset_scale=0.25, **options)
    assert_near(with_gradients(given, upstream, ALL, softmax=False, offset_scale=0.25, **options), raw, BOUNDS[dtype])
    nearest = with_gradients(exact, upstream.cpu(), ["value", "attention_logits"], nearest=True, **options)
    found = with_gradients(given, upstream, ["value", "attention_logits"], nearest=True, **options)
    # A few samples lie so close to a border that float32 takes the neighbouring pixel.
    assert_near(found, nearest, 0.1)


def test_rows_of_one_projection_and_references_that_are_shared_are_read_in_place() -> None:
    given = tensors("points", torch.float16)
    batch, queries, heads, levels, points = given["attention_logits"].shape
    samples = heads * levels * points
    packed = torch.empty(batch, queries, 3 * samples, dtype=torch.float16, device="cuda")
    offsets = packed[..., : 2 * samples].unflatten(-1, (heads, levels, points, 2))
    logits = packed[..., 2 * samples :].unflatten(-1, (heads, levels, points))
    offsets.copy_(given["sampling_offsets"])
    logits.copy_(given["attention_logits"])
    shared = given["reference_points"][:1]
    value = torch.cat([given["value"], given["value"]], dim=-1)[..., :32]
    views = {"value": value, "reference_points": shared, "sampling_offsets": offsets, "attention_logits": logits}
    plain = {**given, "reference_points": shared.expand(batch, -1, -1, -1).contiguous()}
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    output = attend(spatial_shapes=SHAPES, **views)
    assert torch.cuda.max_memory_allocated() - before <= output.nbytes + 512, "something was copied"
    torch.testing.assert_close(output, attend(spatial_shapes=SHAPES, **plain), rtol=0, atol=0)


def test_nothing_but_the_arguments_is_kept_for_the_gradient() -> None:
    given = {name: tensor.requires_grad_() for name, tensor in tensors("points", torch.float16, queries=2000).items()}
    attend(spatial_shapes=SHAPES, **given)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    output = attend(spatial_shapes=SHAPES, **given)
    assert torch.cuda.memory_allocated() - before <= output.nbytes + 512


@pytest.mark.parametrize("dtype", list(BOUNDS))
def test_deterministic_gradients_have_the_same_bits(dtype: torch.dtype) -> None:
    given = tensors("boxes", dtype, queries=900)
    upstream = torch.rand(2, 900, 256).to(dtype).cuda()
    first = with_gradients(given, upstream, ALL, deterministic=True)
    for _ in range(5):
        again = with_gradients(given, upstream, ALL, deterministic=True)
        assert all(torch.equal(first[name], again[name]) for name in first)
    torch.use_deterministic_algorithms(True)
    try:
        again = with_gradients(given, upstream, ALL)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_float64_is_computed_and_a_row_without_weights_is_zero() -> None:
    given = {name: tensor.double() for name, tensor in tensors("points", torch.float32).items()}
    given["attention_logits"][1, 3] = -torch.inf
    output = attend(spatial_shapes=SHAPES, **given)
    assert output.is_cuda and output.dtype == torch.float64
    assert bool((output[1, 3] == 0).all()) and bool((output[1, 4] != 0).any())
    half = {name: tensor.half() for name, tensor in given.items()}
    found = with_gradients(half, torch.ones(2, 70, 256, dtype=torch.float16, device="cuda"), ALL)
    assert bool((found["output"][1, 3] == 0).all())
    assert all(bool((found[name][1, 3] == 0).all()) for name in ALL[1:])


def test_an_ordinary_call_and_the_dispatcher_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tensors("boxes", torch.bfloat16)
    upstream = torch.rand(2, 70, 256, device="cuda").bfloat16()
    with pytest.MonkeyPatch.context() as refusing:
        refusing.setattr(_autograd, "_gradients", None)  # What is not ordinary would go there.
        refusing.setattr(operator, "call", None)
        first = with_gradients(given, upstream, ALL, deterministic=True)
    monkeypatch.setattr(_native, "torch_forward", lambda *_: None)
    between = with_gradients(given, upstream, ALL, deterministic=True)
    monkeypatch.setattr(_native, "torch_backward", lambda *_: None)
    again = with_gradients(given, upstream, ALL, deterministic=True)
    for found in (between, again):
        assert all(torch.equal(first[name], found[name]) for name in first)


def test_captured_and_compiled() -> None:
    given = tensors("points", torch.float16, queries=300)
    static = {name: tensor.clone().requires_grad_(name != "reference_points") for name, tensor in given.items()}

    def step(call: Any = attend) -> list[Tensor]:
        output = call(spatial_shapes=SHAPES, **static)
        leaves = [static[name] for name in ALL if name != "reference_points"]
        return [output, *torch.autograd.grad(output.square().sum(), leaves)]

    # On the stream of the capture from the first use of the leaves on, as PyTorch wants it.
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = [tensor.detach() for tensor in step()]
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        captured = [tensor.detach() for tensor in step()]
    for tensor in captured:
        tensor.zero_()
    graph.replay()
    compiled = torch.compile(attend, fullgraph=True, dynamic=False)
    for found in (captured, step(compiled)):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


def test_half_precision_does_not_cost_coordinates() -> None:
    """Compared with the chain of parts in half precision, which rounds the coordinates."""
    given = tensors("points", torch.float16, queries=2000)
    exact = {name: tensor.double().cpu() for name, tensor in given.items()}
    expected = attend(spatial_shapes=SHAPES, **exact)
    sizes = torch.tensor([(width, height) for height, width in SHAPES], device="cuda")
    locations = (
        given["reference_points"].half()[:, :, None, :, None] + given["sampling_offsets"] / sizes[:, None].half()
    )
    weights = given["attention_logits"].flatten(3).softmax(-1).view(given["attention_logits"].shape)
    parts = msdeform.ms_deform_attn(given["value"], SHAPES, None, locations, weights)

    def error(found: Tensor) -> float:
        return float((found.double().cpu() - expected).norm() / expected.norm())

    fused = error(attend(spatial_shapes=SHAPES, **given))
    assert fused < 1e-3
    assert error(parts) > 4 * fused


LAYERS = {"transformers": DEFORMABLE_DETR, "ultralytics": ULTRALYTICS, "rfdetr": RFDETR}


@pytest.mark.parametrize("package", list(LAYERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_layers_under_patch_are_fused_and_no_less_exact(package: str, dtype: torch.dtype) -> None:
    pytest.importorskip(package)
    kind = layer_of(LAYERS[package])
    forms = [(2, True, False), (4, True, True), (4, False, False)]
    calls = [call for call in (make_call(kind, *form) for form in forms) if runs(call)]
    assert calls, "none that it takes"
    for call in calls:
        check_layer(call, package, dtype)


def check_layer(call: Call, package: str, dtype: torch.dtype) -> None:
    expected = {name: tensor.detach() for name, tensor in call.to(torch.float64).everything().items()}
    on_gpu = call.to(dtype, "cuda")
    original = on_gpu.everything()
    with msdeform.patch(package):
        with CountCalls() as count:
            on_gpu()
        assert count.from_offsets == 1, "the layer was not fused"
        found = on_gpu.everything()
    for name, theirs in expected.items():
        error, before = (
            float((each[name].detach().double().cpu() - theirs).norm() / theirs.norm()) for each in (found, original)
        )
        # Projections are rounded in both, which in half precision is most of it.
        rounding = 1e-4 if dtype is torch.float32 else 1e-3
        assert error < max(rounding, 1.1 * before), f"{name}: {error}, before {before}"


def test_wrong_calls_are_refused_before_anything_is_launched() -> None:
    given = tensors("points", torch.float16)
    with pytest.raises(ValueError, match="one device"):
        attend(spatial_shapes=SHAPES, **{**given, "attention_logits": given["attention_logits"].cpu()})
    with pytest.raises(ValueError, match="sampling_offsets"):
        attend(spatial_shapes=SHAPES, **{**given, "sampling_offsets": given["sampling_offsets"][:, :, :4]})
    torch.cuda.synchronize()
