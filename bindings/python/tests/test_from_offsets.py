"""The operator from offsets and logits: against the chain of parts that models have, and as an operator of PyTorch."""

from __future__ import annotations

import dataclasses
from typing import Any

import msdeform
import pytest
import torch
from msdeform import _native, _parts, operator, reference
from msdeform import ms_deform_attn_from_offsets as attend
from msdeform._operators import FUSED
from oracle import needs_native_tensors
from torch import Tensor

SHAPES = [(6, 9), (3, 5)]
PIXELS = sum(height * width for height, width in SHAPES)
N, LQ, M, D, P = 2, 5, 3, 8, 4


def tensors(kind: str = "points", dtype: Any = torch.float64, points: int = P, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)

    references = {
        "points": (N, LQ, len(SHAPES), 2),
        "boxes": (N, LQ, len(SHAPES), 4),
        "box": (N, LQ, 1, 4),
        "anchors": (N, LQ, 3, 2),
        "box anchors": (N, LQ, 3, 4),
    }[kind]
    return {
        "value": random(N, PIXELS, M, D) - 0.5,
        "reference_points": 0.2 + 0.6 * random(*references),
        "sampling_offsets": 3 * random(N, LQ, M, len(SHAPES), points, 2) - 1.5,
        "attention_logits": 2 * random(N, LQ, M, len(SHAPES), points),
    }


def by_parts(
    value: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    anchors: bool = False,
    offset_scale: float = 0.5,
    softmax: bool = True,
) -> Tensor:
    """As models write it, in float64, around the readable reference."""
    value, references, offsets, logits = (
        tensor.double() for tensor in (value, reference_points, sampling_offsets, attention_logits)
    )
    points = offsets.shape[4]
    if anchors:
        index = torch.arange(points) % references.shape[2]
        references = references[:, :, None, None, index]
    else:
        references = references[:, :, None, :, None]
    if references.shape[-1] == 2:
        sizes = torch.tensor([(width, height) for height, width in SHAPES])
        locations = references + offsets / sizes[:, None]
    else:
        locations = references[..., :2] + offsets / points * references[..., 2:] * offset_scale
    weights = logits.flatten(3).softmax(-1).view(logits.shape) if softmax else logits
    return reference.ms_deform_attn(value, SHAPES, None, locations, weights)


KINDS = ["points", "boxes", "box", "anchors", "box anchors"]


def options_of(kind: str) -> dict[str, Any]:
    return {"anchors": True} if kind.endswith("anchors") else {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_output_and_gradients_are_those_of_the_parts(kind: str, dtype: Any) -> None:
    given = tensors(kind, dtype)
    options = options_of(kind)
    exact = {name: tensor.double().requires_grad_() for name, tensor in given.items()}
    expected = by_parts(**exact, **options)
    upstream = torch.rand(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7)).to(dtype)
    expected.backward(upstream.double())
    found = {name: tensor.requires_grad_() for name, tensor in given.items()}
    output = attend(spatial_shapes=SHAPES, **found, **options)
    assert output.dtype == dtype
    output.backward(upstream)
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 4e-3}[dtype]
    pairs = [("output", output, expected)]
    pairs += [(name, found[name].grad, exact[name].grad) for name in given]
    for name, ours, theirs in pairs:
        error = (ours.double() - theirs).norm() / theirs.norm()
        assert error < bound, f"{name}: {error}"


def test_options() -> None:
    given = tensors("boxes", torch.float32)
    close = {"rtol": 1e-4, "atol": 1e-5}
    raw = attend(spatial_shapes=SHAPES, **given, softmax=False, offset_scale=2.0)
    expected = by_parts(**given, softmax=False, offset_scale=2.0).float()
    torch.testing.assert_close(raw, expected, **close)
    output, weights = attend(spatial_shapes=SHAPES, **given, return_weights=True)
    assert weights.shape == given["attention_logits"].shape
    torch.testing.assert_close(weights.flatten(3).sum(-1), torch.ones(N, LQ, M))
    torch.testing.assert_close(output, by_parts(**given).float(), **close)
    # One axis of samples, levels that differ in their points, and a scale for each: the same call said otherwise.
    flat = {
        **given,
        "sampling_offsets": given["sampling_offsets"].flatten(3, 4),
        "attention_logits": given["attention_logits"].flatten(3),
    }
    assert torch.equal(attend(spatial_shapes=SHAPES, **flat, points=[P, P]), output)
    assert torch.equal(attend(spatial_shapes=torch.tensor(SHAPES), **flat), output)
    assert torch.equal(attend(spatial_shapes=SHAPES, level_start_index=[0, 54], **flat), output)


def test_nearest_is_the_published_function() -> None:
    given = tensors("box", torch.float32)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
    output = attend(spatial_shapes=SHAPES, **leaves, nearest=True)
    output.sum().backward()
    assert not leaves["sampling_offsets"].grad.any()
    assert not leaves["reference_points"].grad.any()
    assert leaves["value"].grad.any() and leaves["attention_logits"].grad.any()
    references = given["reference_points"][:, :, None, :, None]
    offsets = given["sampling_offsets"]
    locations = references[..., :2] + offsets / P * references[..., 2:] * 0.5
    weights = given["attention_logits"].flatten(3).softmax(-1).view(N, LQ, M, len(SHAPES), P)
    total, start = torch.zeros(N, LQ, M, D), 0
    for level, (height, width) in enumerate(SHAPES):
        size = torch.tensor([width, height])
        pixel = (locations[:, :, :, level] * size + 0.5).to(torch.int64)
        x, y = pixel[..., 0].clamp(0, width - 1), pixel[..., 1].clamp(0, height - 1)
        images = torch.arange(N)[:, None, None, None]
        heads = torch.arange(M)[None, None, :, None]
        sampled = given["value"][images, start + y * width + x, heads]
        total += (sampled * weights[:, :, :, level, :, None]).sum(3)
        start += height * width
    torch.testing.assert_close(output, total.flatten(2), rtol=1e-4, atol=1e-5)


def test_views_of_one_projection_and_expanded_references_are_read_where_they_are() -> None:
    samples = M * len(SHAPES) * P
    projection = torch.randn(N, LQ, 3 * samples, generator=torch.Generator().manual_seed(3))
    offsets = projection[..., : 2 * samples].unflatten(-1, (M, len(SHAPES), P, 2))
    logits = projection[..., 2 * samples :].unflatten(-1, (M, len(SHAPES), P))
    assert not offsets.is_contiguous() and not logits.is_contiguous()
    value = tensors(dtype=torch.float32)["value"]
    references = torch.rand(1, LQ, 1, 4)
    output = attend(value, SHAPES, references, offsets, logits)
    whole = references.expand(N, LQ, 1, 4).contiguous()
    assert torch.equal(output, attend(value, SHAPES, whole, offsets.contiguous(), logits.contiguous()))
    # Not even the last axes follow each other: a copy is made, and nothing is wrong.
    turned = offsets.transpose(3, 4).contiguous().transpose(3, 4)
    assert torch.equal(output, attend(value, SHAPES, references, turned, logits))
    references.requires_grad_()
    attend(value, SHAPES, references, offsets, logits).sum().backward()
    assert references.grad.shape == (1, LQ, 1, 4)


def test_references_in_float32_beside_half_precision_keep_their_digits() -> None:
    given = tensors("points", torch.float16)
    exact = tensors("points", torch.float64)["reference_points"].float()
    mixed = {**given, "reference_points": exact}
    output = attend(spatial_shapes=SHAPES, **mixed)
    expected = by_parts(**mixed)
    assert (output.double() - expected).norm() / expected.norm() < 5e-4


def test_rows_without_any_weight_are_zero() -> None:
    given = tensors("points", torch.float32)
    given["attention_logits"][0, 1] = -torch.inf
    leaves = {name: tensor.requires_grad_() for name, tensor in given.items()}
    output = attend(spatial_shapes=SHAPES, **leaves)
    output.sum().backward()
    assert not output[0, 1].any() and output[0, 0].any()
    for name in ("attention_logits", "sampling_offsets", "reference_points"):
        assert not leaves[name].grad[0, 1].any(), name
        assert leaves[name].grad.isfinite().all(), name


RULE = (0.5, False, True, False)
LEVELS = [6, 9, 0, P, 3, 5, 54, P]


@needs_native_tensors
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_ordinary_calls_never_leave_the_native_half(kind: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list(tensors(kind, dtype).values())
    options = (0.5, kind.endswith("anchors"), True, False)
    wanted = [True, kind != "box", False, True]
    leaves = [tensor.clone().requires_grad_(is_wanted) for tensor, is_wanted in zip(given, wanted, strict=True)]
    upstream = torch.rand(N, LQ, M * D).to(dtype)
    output = FUSED.numbers.forward(*given, LEVELS, *options)
    expected = FUSED.numbers.backward(upstream, *given, LEVELS, *options, wanted)
    # What is not ordinary would go there.
    monkeypatch.setattr(operator, "call", None)
    monkeypatch.setattr(FUSED, "numbers", dataclasses.replace(FUSED.numbers, forward=None, backward=None))
    recorded = attend(leaves[0], SHAPES, *leaves[1:], anchors=kind.endswith("anchors"))
    assert torch.equal(recorded, output)
    recorded.backward(upstream)
    for leaf, gradient, is_wanted in zip(leaves, expected, wanted, strict=True):
        assert (leaf.grad is not None) == is_wanted
        assert not is_wanted or torch.equal(leaf.grad, gradient)
    with torch.no_grad():
        silent = attend(leaves[0], SHAPES, *leaves[1:], anchors=kind.endswith("anchors"))
    assert torch.equal(silent, output) and not silent.requires_grad
    for levels, are_shapes in ((SHAPES, True), (LEVELS, False)):
        assert torch.equal(_native.torch_forward(tuple(leaves), levels, are_shapes, options, False, False), output)


@needs_native_tensors
def test_only_ordinary_calls_stay_in_the_native_half() -> None:
    value, references, offsets, logits = tensors(dtype=torch.float32).values()

    def call(*given: Any, shapes: Any = SHAPES, rule: Any = RULE) -> Any:
        return _native.torch_forward(given, shapes, True, rule, False, True)

    assert call(value, references, offsets, logits) is not None
    for other in (
        torch.nn.Parameter(value),
        value.double(),
        value.to("meta"),
        torch._neg_view(value),
        value.transpose(1, 2).contiguous().transpose(1, 2),
        value[:, 1:],
        value.to_sparse(),
        3,
    ):
        assert call(other, references, offsets, logits) is None
    for other in (references[:1], references[..., :1], references[:, :, 0], references.double(), references.long()):
        assert call(value, other, offsets, logits) is None
    assert call(value, references, offsets.transpose(3, 4), logits) is None
    assert call(value, references, offsets, logits.half()) is None
    for shapes in ([(6, 9.0), (3, 5)], [(6, 9, 1)] * 2, [(6, 9), (3, 4)], LEVELS, torch.tensor(SHAPES), []):
        assert call(value, references, offsets, logits, shapes=shapes) is None
    for rule in ((None, False, True, False), (0.5, 0, True, False), RULE[:3]):
        assert call(value, references, offsets, logits, rule=rule) is None
    with torch.profiler.profile():
        assert call(value, references, offsets, logits) is None


def test_what_is_recorded_is_kept_as_autograd_keeps_it() -> None:
    given = tensors(dtype=torch.float32)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
    upstream, packed, unpacked = torch.rand(N, LQ, M * D), [], []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.shape)
        return tensor.clone()

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(tensor.shape)
        return tensor

    expected = torch.autograd.grad(attend(spatial_shapes=SHAPES, **leaves), list(leaves.values()), upstream)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        output = attend(spatial_shapes=SHAPES, **leaves)
    shapes = [tensor.shape for tensor in given.values()]
    assert packed == shapes and not unpacked
    for found in (
        torch.autograd.grad(output, list(leaves.values()), upstream, retain_graph=True),
        # A gradient that is no ordinary tensor in memory goes the long way.
        torch.autograd.grad(output, list(leaves.values()), upstream.transpose(0, 1).contiguous().transpose(0, 1)),
    ):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    assert unpacked == 2 * shapes
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(output, list(leaves.values()), upstream)
    # Some of them only.
    some = attend(spatial_shapes=SHAPES, **leaves)
    (found,) = torch.autograd.grad(some, leaves["sampling_offsets"], upstream)
    assert torch.equal(found, expected[2])
    changed = given["value"] * leaves["value"].detach().requires_grad_()
    output = attend(spatial_shapes=SHAPES, **{**leaves, "value": changed})
    changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward(upstream)


def test_as_an_operator() -> None:
    """What PyTorch asks of an operator: schema, fake tensors, autograd, compilation with sizes that change."""
    given = tensors("boxes", torch.float32)
    levels = [6, 9, 0, P, 3, 5, 54, P]
    arguments = tuple(tensor.clone().requires_grad_() for tensor in given.values())
    operator = torch.ops.msdeform.ms_deform_attn_from_offsets.default
    torch.library.opcheck(operator, (*arguments, levels, 0.5, False, True, False))


def test_compiles_once_and_gives_the_same() -> None:
    given = tensors("points", torch.float32)

    def loss(value: Tensor, reference_points: Tensor, sampling_offsets: Tensor, attention_logits: Tensor) -> Tensor:
        return attend(value, SHAPES, reference_points, sampling_offsets, attention_logits).square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    plain = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
    graph = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
    for _ in range(2):
        loss(**plain).backward()
        compiled(**graph).backward()
    for name in given:
        assert torch.equal(plain[name].grad, graph[name].grad), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nearest", [False, True])
def test_parts_for_graphs_that_do_not_know_the_levels(kind: str, nearest: bool) -> None:
    """There, and on GPUs, PyTorch's own operations surround the operator."""
    given = tensors(kind, torch.float32)
    options = {"anchors": kind.endswith("anchors"), "nearest": nearest}

    def call(shapes: Tensor, **tensors: Tensor) -> Tensor:
        return attend(spatial_shapes=shapes, **tensors, **options)

    torch._dynamo.reset()
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    found = compiled(torch.tensor(SHAPES), **given)
    torch.testing.assert_close(found, call(torch.tensor(SHAPES), **given), rtol=1e-4, atol=1e-5)
    # The same with numbers, and with points that differ from level to level.
    fewer = [P, P - 1]
    offsets, logits = (
        given["sampling_offsets"].flatten(3, 4)[:, :, :, :-1],
        given["attention_logits"].flatten(3)[..., :-1],
    )
    locations = _parts.locations(given["reference_points"], offsets, SHAPES, fewer, **options)
    by_hand = msdeform.ms_deform_attn(given["value"], SHAPES, None, locations, logits.softmax(-1), points=fewer)
    whole = {**given, "sampling_offsets": offsets, "attention_logits": logits}
    torch.testing.assert_close(
        by_hand, attend(spatial_shapes=SHAPES, **whole, points=fewer, **options), rtol=1e-4, atol=1e-5
    )


def test_transforms() -> None:
    given = tensors("points", torch.float64)

    def loss(offsets: Tensor, logits: Tensor) -> Tensor:
        return attend(given["value"], SHAPES, given["reference_points"], offsets, logits).square().sum()

    offsets, logits = given["sampling_offsets"], given["attention_logits"]
    by_transform = torch.func.grad(loss, argnums=(0, 1))(offsets, logits)
    leaves = offsets.clone().requires_grad_(), logits.clone().requires_grad_()
    by_tape = torch.autograd.grad(loss(*leaves), leaves)
    for ours, theirs in zip(by_transform, by_tape, strict=True):
        torch.testing.assert_close(ours, theirs)
    mapped = torch.vmap(lambda offsets: attend(**{**given, "sampling_offsets": offsets}, spatial_shapes=SHAPES))
    several = torch.stack([offsets, offsets + 0.25])
    for index, row in enumerate(mapped(several)):
        torch.testing.assert_close(row, attend(**{**given, "sampling_offsets": several[index]}, spatial_shapes=SHAPES))


def test_autocast_takes_values_to_its_format_and_keeps_coordinates() -> None:
    given = tensors("points", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output = attend(spatial_shapes=SHAPES, **given)
    assert output.dtype == torch.bfloat16
    expected = by_parts(**{**given, "value": given["value"].bfloat16()})
    assert (output.double() - expected).norm() / expected.norm() < 4e-3


def test_on_meta() -> None:
    given = {name: tensor.to("meta") for name, tensor in tensors("points", torch.float32).items()}
    assert attend(spatial_shapes=SHAPES, **given).shape == (N, LQ, M * D)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reference_points": torch.rand(N, LQ, 3, 2)}, "reference_points"),
        ({"reference_points": torch.rand(N, LQ, 2, 3)}, "reference_points"),
        ({"reference_points": torch.rand(N, LQ + 1, 2, 2)}, "reference_points"),
        ({"attention_logits": torch.rand(N, LQ, M, 2, P + 1)}, "attention_logits"),
        ({"sampling_offsets": torch.rand(N, LQ, M + 1, 2, P, 2)}, "sampling_offsets"),
        ({"value": torch.rand(N, PIXELS + 1, M, D)}, "pixels"),
        ({"value": torch.rand(N, PIXELS, M)}, "value"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Tensor], words: str) -> None:
    given = {**tensors("points", torch.float32), **change}
    with pytest.raises((ValueError, RuntimeError), match=words):
        attend(spatial_shapes=SHAPES, **given)


def test_the_layer_is_as_before() -> None:
    """Points and boxes through `MSDeformAttn`, which uses the fused operator on the CPU."""
    torch.manual_seed(5)
    layer = msdeform.MSDeformAttn(24, n_levels=2, n_heads=3, n_points=4).double()
    torch.nn.init.normal_(layer.sampling_offsets.weight, std=0.1)
    torch.nn.init.normal_(layer.attention_weights.weight, std=0.1)
    query, pixels = torch.randn(N, LQ, 24).double(), torch.randn(N, PIXELS, 24).double()
    for components in (2, 4):
        references = torch.rand(N, LQ, 2, components).double()
        found = layer(query, references, pixels, SHAPES)
        expected = by_parts(
            layer.value_proj(pixels).view(N, PIXELS, 3, 8),
            references,
            layer.sampling_offsets(query).view(N, LQ, 3, 2, 4, 2),
            layer.attention_weights(query).view(N, LQ, 3, 2, 4),
        )
        torch.testing.assert_close(found, layer.output_proj(expected))
