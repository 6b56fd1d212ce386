"""Derivatives of gradients, and forward mode: the reference computes them, wherever autograd comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msdeform
import pytest
import torch
from msdeform import _native, reference
from msdeform import ms_deform_attn_from_offsets as attend_from_offsets
from oracle import Case, assert_close, make_case, needs_native_tensors
from oracle import reference as oracle
from test_from_offsets import KINDS, SHAPES, by_parts, options_of, tensors
from test_transforms import needs_vmap
from torch import Tensor
from torch.autograd import forward_ad

SMALL = make_case(batch=2, shapes=((3, 4), (2, 2)), heads=2, channels=2, queries=2, points=2).to(torch.float64)
FEWER = make_case(batch=1, shapes=((3, 4), (2, 2)), heads=1, channels=2, queries=2, points=[1, 2]).to(torch.float64)


def given_as_tensor(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    shapes = torch.tensor(SMALL.shapes)
    return torch.ops.msdeform.ms_deform_attn.tensor_levels(value, locations, weights, shapes, None, None)


# By the way that a call goes: native on both sides, by Python's half of autograd, by the operator of PyTorch with its
# levels as numbers, and as a tensor.
WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "recorded": lambda value, *rest: msdeform.ms_deform_attn(value, SMALL.shapes, None, *rest),
    "python": lambda value, *rest: msdeform.ms_deform_attn(value, SMALL.shapes, [0, 12], *rest),
    "operator": lambda *tensors: torch.ops.msdeform.ms_deform_attn(*tensors, [3, 4, 0, 2, 2, 2, 12, 2]),
    "tensor levels": given_as_tensor,
}
ways = pytest.mark.parametrize("way", WAYS)


def leaves_of(tensors: Any) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)


def exact(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    return oracle(replace(SMALL, value=value, locations=locations, weights=weights))


def penalty(attend: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """What depends on all gradients, in a way that is not linear."""
    gradients = torch.autograd.grad(attend(*tensors).square().sum(), tensors, create_graph=True)
    return sum((gradient.square().sum() for gradient in gradients), start=torch.zeros((), dtype=torch.float64))


# The plain operator --------------------------------------------------------------------------------------------


@ways
def test_second_and_third_derivatives_are_those_of_finite_differences(way: str) -> None:
    attend = WAYS[way]
    assert torch.autograd.gradgradcheck(attend, leaves_of(SMALL.tensors))
    one = Case(SMALL.value[:1], SMALL.shapes, SMALL.locations[:1, :1], SMALL.weights[:1, :1])

    def gradients(*tensors: Tensor) -> Any:
        return torch.autograd.grad(attend(*tensors).square().sum(), tensors, create_graph=True)

    assert torch.autograd.gradgradcheck(gradients, leaves_of(one.tensors), fast_mode=True)


@ways
def test_a_gradient_penalty_is_that_of_grid_sample(way: str) -> None:
    """grid_sample can be differentiated twice from PyTorch 2.15 on; the oracle of reference.py always can."""
    ours, theirs = leaves_of(SMALL.tensors), leaves_of(SMALL.tensors)
    penalty(WAYS[way], *ours).backward()
    penalty(lambda value, *rest: reference.ms_deform_attn(value, SMALL.shapes, None, *rest), *theirs).backward()
    for found, expected in zip(ours, theirs, strict=True):
        assert_close(found.grad, expected.grad, 1e-12)
    try:
        others = leaves_of(SMALL.tensors)
        penalty(exact, *others).backward()
    except (NotImplementedError, RuntimeError) as error:
        assert "grid_sampler" in str(error), error
        return
    for found, expected in zip(ours, others, strict=True):
        assert_close(found.grad, expected.grad, 1e-10)


def test_points_that_differ_from_level_to_level() -> None:
    def attend(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return msdeform.ms_deform_attn(value, FEWER.shapes, None, locations, weights, points=FEWER.points)

    assert torch.autograd.gradgradcheck(attend, leaves_of(FEWER.tensors))


@ways
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_some_gradients_only(way: str, wanted: tuple[int, ...]) -> None:
    def of(attend: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        given = [each.clone().requires_grad_(at in wanted) for at, each in enumerate(SMALL.tensors)]
        asked = [given[at] for at in wanted]
        gradients = torch.autograd.grad(attend(*given).square().sum(), asked, create_graph=True)
        return torch.autograd.grad([each.square().sum() for each in gradients], asked)

    expected = of(lambda value, *rest: reference.ms_deform_attn(value, SMALL.shapes, None, *rest))
    for found, wanted_one in zip(of(WAYS[way]), expected, strict=True):
        assert_close(found, wanted_one, 1e-12)


def test_a_tensor_that_was_computed_from_another_counts_once() -> None:
    """Locations and weights that follow from the values: shares of one must not be added to the other twice."""

    def of(attend: Callable[..., Tensor]) -> Tensor:
        value = SMALL.value.clone().requires_grad_()
        locations = SMALL.locations + 0.01 * value.mean().tanh()
        weights = SMALL.weights * value.square().mean()
        output = attend(value, locations, weights)
        (gradient,) = torch.autograd.grad(output.square().sum(), value, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), value)[0]

    plain = of(lambda value, *rest: reference.ms_deform_attn(value, SMALL.shapes, None, *rest))
    for attend in WAYS.values():
        assert_close(of(attend), plain, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_formats(dtype: torch.dtype) -> None:
    case = make_case(dtype=dtype)
    ours, theirs = leaves_of(case.tensors), leaves_of(case.to(torch.float64).tensors)
    for given in (ours, theirs):
        output = msdeform.ms_deform_attn(given[0], case.shapes, None, *given[1:])
        gradients = torch.autograd.grad(output.float().square().mean(), given, create_graph=True)
        (1000 * sum(each.float().square().sum() for each in gradients)).backward()
    # Gradients are rounded to the format in between, once more than outputs are.
    bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for found, expected in zip(ours, theirs, strict=True):
        assert found.grad is not None and found.grad.dtype is dtype
        assert_close(found.grad, expected.grad, bound)


def test_samples_that_do_not_count_have_derivatives_of_zero() -> None:
    locations = SMALL.locations.clone()
    for at, number in enumerate((torch.nan, torch.inf, -torch.inf, 1e308)):
        locations.view(-1, 2)[at, at % 2] = number
    value, locations, weights = leaves_of((SMALL.value, locations, SMALL.weights))
    for attend in WAYS.values():
        (gradient,) = torch.autograd.grad(
            attend(value, locations, weights).square().sum(), locations, create_graph=True
        )
        found = torch.autograd.grad(gradient.square().sum(), (value, locations, weights))
        assert all(each.isfinite().all() for each in found)
        assert not found[1].view(-1, 2)[:4].any() and found[1].any()


@pytest.mark.parametrize("sizes", [{"queries": 0}, {"batch": 0}, {"points": 0}, {"channels": 0}], ids=str)
def test_calls_without_numbers(sizes: dict[str, int]) -> None:
    case = make_case(**{"shapes": ((3, 4),), **sizes}).requires_grad()  # type: ignore[arg-type]
    output = msdeform.ms_deform_attn(case.value, case.shapes, None, case.locations, case.weights)
    gradients = torch.autograd.grad(output.square().sum(), case.tensors, create_graph=True)
    found = torch.autograd.grad(sum(each.square().sum() for each in gradients), case.tensors, allow_unused=True)
    assert all(each is None or not each.any() for each in found)


# Ways to ask ---------------------------------------------------------------------------------------------------


@ways
def test_transforms_of_transforms(way: str) -> None:
    direction = torch.randn(2, 2, 4, dtype=torch.float64)

    def slope(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def loss(*tensors: Tensor) -> Tensor:
            return (attend(*tensors).square() * direction).sum()

        return lambda *tensors: sum(each.square().sum() for each in torch.func.grad(loss, argnums=(0, 1, 2))(*tensors))  # type: ignore[return-value]

    ours, theirs = (
        torch.func.grad(slope(attend), argnums=(0, 1, 2))(*SMALL.tensors)
        for attend in (WAYS[way], lambda value, *rest: reference.ms_deform_attn(value, SMALL.shapes, None, *rest))
    )
    for found, expected in zip(ours, theirs, strict=True):
        assert_close(found, expected, 1e-12)
    # A transform inside, autograd outside.
    leaves = leaves_of(SMALL.tensors)
    slope(WAYS[way])(*leaves).backward()
    for leaf, expected in zip(leaves, theirs, strict=True):
        assert_close(leaf.grad, expected, 1e-12)


@needs_vmap
@ways
def test_hessians(way: str) -> None:
    """By reverse mode twice, by forward over reverse mode, and by autograd, one row at a time and all at once."""

    def loss_of(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda value, locations: attend(value, locations, SMALL.weights).square().sum()

    given = SMALL.value, SMALL.locations
    loss = loss_of(WAYS[way])
    plain = loss_of(lambda value, *rest: reference.ms_deform_attn(value, SMALL.shapes, None, *rest))
    expected = torch.autograd.functional.hessian(plain, given)
    for found in (
        torch.func.jacrev(torch.func.jacrev(loss, (0, 1)), (0, 1))(*given),
        torch.func.hessian(loss, (0, 1))(*given),
        torch.autograd.functional.hessian(loss, given),
        torch.autograd.functional.hessian(loss, given, vectorize=True),
    ):
        for row, exact_row in zip(found, expected, strict=True):
            for block, exact_block in zip(row, exact_row, strict=True):
                assert_close(block, exact_block, 1e-10)


@ways
def test_forward_mode(way: str) -> None:
    attend, tangents = WAYS[way], tuple(torch.randn_like(tensor) for tensor in SMALL.tensors)
    _, expected = torch.func.jvp(exact_by_reference, SMALL.tensors, tangents)
    _, found = torch.func.jvp(attend, SMALL.tensors, tangents)
    assert_close(found, expected, 1e-12)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(SMALL.tensors, tangents, strict=True)]
        assert_close(forward_ad.unpack_dual(attend(*duals)).tangent, expected, 1e-12)
    assert torch.autograd.gradcheck(attend, leaves_of(SMALL.tensors), check_forward_ad=True)


def exact_by_reference(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    return reference.ms_deform_attn(value, SMALL.shapes, None, locations, weights)


@ways
def test_forward_mode_through_a_gradient(way: str) -> None:
    """The output was recorded before; only the gradient that comes in has a tangent."""
    leaves = leaves_of(SMALL.tensors)
    output = WAYS[way](*leaves)
    primal, tangent = torch.randn_like(output), torch.randn_like(output)
    expected = torch.autograd.grad(output, leaves, tangent, retain_graph=True)
    with forward_ad.dual_level():
        found = torch.autograd.grad(output, leaves, forward_ad.make_dual(primal, tangent))
        for each, wanted in zip(found, expected, strict=True):
            assert_close(forward_ad.unpack_dual(each).tangent, wanted, 1e-12)


def test_forward_mode_of_gradients_needs_a_tangent_of_grad_output() -> None:
    levels, rest = [3, 4, 0, 2, 2, 2, 12, 2], [True, True, True]
    with forward_ad.dual_level():
        value = forward_ad.make_dual(SMALL.value, SMALL.value)
        with pytest.raises(NotImplementedError, match="possible for `grad_output` alone"):
            torch.ops.msdeform.ms_deform_attn_backward(
                torch.zeros(2, 2, 4, dtype=torch.float64), value, *SMALL.tensors[1:], levels, rest
            )


def test_under_hooks_of_saved_tensors_and_checkpoints() -> None:
    def checkpointed(*tensors: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(WAYS["recorded"], *tensors, use_reentrant=False)

    plain, kept, again = leaves_of(SMALL.tensors), leaves_of(SMALL.tensors), leaves_of(SMALL.tensors)
    penalty(WAYS["recorded"], *plain).backward()
    with torch.autograd.graph.save_on_cpu():
        penalty(WAYS["recorded"], *kept).backward()
    penalty(checkpointed, *again).backward()
    for expected, *found in zip(plain, kept, again, strict=True):
        assert all(torch.equal(each.grad, expected.grad) for each in found)


def test_a_compiled_gradient_penalty() -> None:
    torch._dynamo.reset()
    attend = torch.compile(WAYS["recorded"], backend="eager", fullgraph=True)
    ours, theirs = leaves_of(SMALL.tensors), leaves_of(SMALL.tensors)
    penalty(attend, *ours).backward()
    penalty(WAYS["recorded"], *theirs).backward()
    for found, expected in zip(ours, theirs, strict=True):
        assert_close(found.grad, expected.grad, 1e-12)


# What it costs those who do not ask -----------------------------------------------------------------------------


@needs_native_tensors
@pytest.mark.parametrize("is_from_offsets", [False, True], ids=["given locations", "from offsets"])
def test_nothing_of_it_runs_for_a_first_derivative(is_from_offsets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary gradients stay in the native half and keep their inputs alone. With `create_graph=True` the gradient is
    computed by the same kernels, bit by bit."""
    case, packed, native = make_case(), [], []
    leaves = leaves_of(tensors("boxes", torch.float32).values() if is_from_offsets else case.tensors)
    torch_backward = _native.torch_backward

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.shape)
        return tensor

    def backward(*arguments: Any) -> Any:
        native.append(arguments)
        return torch_backward(*arguments)

    def refuse(*_: Any) -> Any:
        raise AssertionError("the reference was called")

    monkeypatch.setattr(reference, "attend", refuse)
    monkeypatch.setattr(_native, "torch_backward", backward)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        if is_from_offsets:
            output = attend_from_offsets(leaves[0], SHAPES, *leaves[1:])
        else:
            output = msdeform.ms_deform_attn(leaves[0], case.shapes, None, *leaves[1:])
    assert packed == [leaf.shape for leaf in leaves]
    ordinary = torch.autograd.grad(output.sum(), leaves, retain_graph=True)
    assert len(native) == 1
    recorded = torch.autograd.grad(output.sum(), leaves, create_graph=True)
    assert all(torch.equal(*pair) for pair in zip(ordinary, recorded, strict=True))
    assert not any(each.requires_grad for each in ordinary) and all(each.requires_grad for each in recorded)


# From offsets --------------------------------------------------------------------------------------------------


def small(kind: str) -> dict[str, Tensor]:
    """One image, two queries, one head, two channels."""
    given = tensors(kind)
    return {
        "value": given["value"][:1, :, :1, :2],
        "reference_points": given["reference_points"][:1, :2],
        "sampling_offsets": given["sampling_offsets"][:1, :2, :1],
        "attention_logits": given["attention_logits"][:1, :2, :1],
    }


@pytest.mark.parametrize(
    "options", [{}, {"softmax": False, "offset_scale": 0.75}, {"level_start_index": [0, 54]}], ids=str
)
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_from_offsets(kind: str, options: dict[str, Any]) -> None:
    given = small(kind)

    def attend(*each: Tensor) -> Tensor:
        return attend_from_offsets(each[0], SHAPES, *each[1:], **options_of(kind), **options)

    assert torch.autograd.gradgradcheck(attend, leaves_of(given.values()), fast_mode=True)
    options = {name: option for name, option in options.items() if name != "level_start_index"}
    ours, theirs = leaves_of(given.values()), leaves_of(given.values())
    penalty(attend, *ours).backward()
    penalty(lambda *each: by_parts(*each, **options_of(kind), **options), *theirs).backward()
    for found, expected in zip(ours, theirs, strict=True):
        assert_close(found.grad, expected.grad, 1e-10)


def test_second_derivatives_of_the_nearest_pixel() -> None:
    """Values and logits have them, references and offsets have no derivative at all."""

    def attend(*each: Tensor) -> Tensor:
        return attend_from_offsets(each[0], SHAPES, *each[1:], nearest=True)

    leaves = leaves_of(small("box").values())
    penalty(attend, *leaves).backward()
    value, references, offsets, logits = leaves
    assert value.grad.any() and logits.grad.any()
    assert not any(each.grad is not None and each.grad.any() for each in (references, offsets))

    def of_two(value: Tensor, logits: Tensor) -> Tensor:
        return attend(value, references.detach(), offsets.detach(), logits)

    assert torch.autograd.gradgradcheck(of_two, leaves_of((value, logits)), fast_mode=True)


def test_rows_without_any_weight_have_derivatives_of_zero() -> None:
    given = small("points")
    given["attention_logits"] = given["attention_logits"].clone()
    given["attention_logits"][0, 1] = -torch.inf
    leaves = leaves_of(given.values())
    penalty(lambda *each: attend_from_offsets(each[0], SHAPES, *each[1:]), *leaves).backward()
    assert all(leaf.grad.isfinite().all() and leaf.grad.any() for leaf in leaves)
    assert not any(leaf.grad[0, 1].any() for leaf in leaves[1:])


@needs_vmap
@pytest.mark.parametrize("kind", KINDS)
def test_transforms_and_forward_mode_from_offsets(kind: str) -> None:
    given = tuple(small(kind).values())

    def loss_of(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda offsets: attend(given[0], given[1], offsets, given[3]).square().sum()

    loss = loss_of(lambda *each: attend_from_offsets(each[0], SHAPES, *each[1:], **options_of(kind)))
    plain = loss_of(lambda *each: by_parts(*each, **options_of(kind)))
    expected = torch.autograd.functional.hessian(plain, given[2])
    for found in (
        torch.func.jacrev(torch.func.jacrev(loss))(given[2]),
        torch.func.hessian(loss)(given[2]),
        torch.autograd.functional.hessian(loss, given[2]),
    ):
        assert_close(found, expected, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_from_offsets_is_the_operator(kind: str) -> None:
    given = tensors(kind)
    found = reference.ms_deform_attn_from_offsets(spatial_shapes=SHAPES, **given, **options_of(kind))
    assert_close(found, attend_from_offsets(spatial_shapes=SHAPES, **given, **options_of(kind)), 1e-12)
    fewer = {
        **given,
        "sampling_offsets": given["sampling_offsets"].flatten(3, 4)[:, :, :, :-1],
        "attention_logits": given["attention_logits"].flatten(3)[..., :-1],
    }
    listed = {**fewer, **options_of(kind), "points": [4, 3]}
    found = reference.ms_deform_attn_from_offsets(spatial_shapes=SHAPES, **listed)
    assert_close(found, attend_from_offsets(spatial_shapes=SHAPES, **listed), 1e-12)
