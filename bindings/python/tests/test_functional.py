"""Results and gradients of the function on PyTorch tensors in host memory."""

from __future__ import annotations

from dataclasses import replace

import msdeform
import pytest
import torch
from oracle import BOUNDS, Case, assert_close, make_case, reference, reference_gradients
from torch import Tensor

FORMATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def attend(case: Case, **keywords: object) -> Tensor:
    output: Tensor = msdeform.ms_deform_attn(
        case.value, case.shapes, None, case.locations, case.weights, points=case.points, **keywords
    )
    return output


CASES = {
    "plain": {},
    "one image": {"batch": 1},
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
    "a level without points": {"points": [3, 0, 2]},
    "many queries": {"queries": 700, "channels": 32},
    "coarse level first": {"shapes": ((2, 3), (8, 12))},
}


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients_are_within_the_bound(name: str, dtype: torch.dtype) -> None:
    case = make_case(dtype=dtype, **CASES[name]).requires_grad()  # type: ignore[arg-type]
    output = attend(case)
    assert output.dtype == dtype
    assert_close(output, reference(case), BOUNDS[dtype])
    grad_output = torch.randn_like(output)
    found = torch.autograd.grad(output, case.tensors, grad_output)
    expected = reference_gradients(case, grad_output)
    for what, gradient, exact, tensor in zip(
        ("value", "locations", "weights"), found, expected, case.tensors, strict=True
    ):
        assert gradient.dtype == tensor.dtype
        assert_close(gradient, exact, BOUNDS[dtype], what)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_values_with_float_locations_need_no_cast(dtype: torch.dtype) -> None:
    case = make_case().requires_grad()
    output = msdeform.ms_deform_attn(case.value.detach().to(dtype), case.shapes, None, case.locations, case.weights)
    exact = Case(case.value.detach().to(dtype), case.shapes, case.locations, case.weights)
    assert output.dtype == dtype
    assert_close(output, reference(exact), BOUNDS[dtype])
    output.sum().backward()
    assert case.locations.grad is not None and case.locations.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("value", "locations", "weights"),
    [
        (torch.float32, torch.float16, torch.float16),
        (torch.float16, torch.float32, torch.float16),
        (torch.bfloat16, torch.float16, torch.float32),
        (torch.float32, torch.float64, torch.float32),
        (torch.float64, torch.float32, torch.float32),
    ],
)
def test_other_mixtures_are_widened(value: torch.dtype, locations: torch.dtype, weights: torch.dtype) -> None:
    case = make_case()
    mixed = Case(
        case.value.to(value).requires_grad_(),
        case.shapes,
        case.locations.to(locations).requires_grad_(),
        case.weights.to(weights).requires_grad_(),
    )
    output = attend(mixed)
    assert output.dtype == value
    assert_close(output, reference(mixed), BOUNDS[value])
    output.sum().backward()
    for tensor in mixed.tensors:
        assert tensor.grad is not None and tensor.grad.dtype == tensor.dtype


def test_only_the_gradients_asked_for_are_computed_and_all_subsets_agree() -> None:
    case = make_case()
    grad_output = torch.randn(2, 11, 32)
    everything = reference_gradients(case, grad_output)
    for mask in range(1, 8):
        tensors = [
            tensor.detach().clone().requires_grad_(bool(mask >> index & 1)) for index, tensor in enumerate(case.tensors)
        ]
        output = attend(Case(tensors[0], case.shapes, tensors[1], tensors[2]))
        output.backward(grad_output)
        for index, tensor in enumerate(tensors):
            if mask >> index & 1:
                assert tensor.grad is not None
                assert_close(tensor.grad, everything[index], 1e-5)
            else:
                assert tensor.grad is None


def test_gradient_check_in_float64() -> None:
    case = make_case(batch=1, shapes=((3, 4), (2, 2)), heads=2, channels=2, queries=2, points=2)
    exact = case.to(torch.float64).requires_grad()
    assert torch.autograd.gradcheck(lambda v, x, w: msdeform.ms_deform_attn(v, case.shapes, None, x, w), exact.tensors)


def test_stride_zero_gradients_and_views_are_read_right() -> None:
    case = make_case().requires_grad()
    attend(case).sum().backward()
    expected = reference_gradients(case, torch.ones(2, 11, 32))
    assert case.value.grad is not None
    assert_close(case.value.grad, expected[0], 1e-5)
    wide = torch.randn(2, case.value.shape[1], 4, 16)
    sliced = wide[..., 4:12]
    permuted = case.value.detach().transpose(1, 2).contiguous().transpose(1, 2)
    for view in (sliced, permuted, case.value.detach()[:1].expand(2, -1, -1, -1)):
        assert not view.is_contiguous()
        found = msdeform.ms_deform_attn(view, case.shapes, None, case.locations, case.weights)
        same = msdeform.ms_deform_attn(view.contiguous(), case.shapes, None, case.locations, case.weights)
        assert torch.equal(found, same)


def test_shapes_in_every_form_give_the_same() -> None:
    case = make_case()
    expected = attend(case)
    starts = [0, 108, 138]
    forms = [
        (torch.tensor(case.shapes), torch.tensor(starts)),
        (torch.tensor(case.shapes, dtype=torch.int32), None),
        (tuple(case.shapes), tuple(starts)),
        ([torch.Size(shape) for shape in case.shapes], torch.tensor(starts)),
        (torch.tensor(case.shapes).numpy(), starts),
        (torch.tensor(case.shapes), starts),
    ]
    for shapes, start in forms:
        found = msdeform.ms_deform_attn(case.value, shapes, start, case.locations, case.weights, 64)
        assert torch.equal(found, expected), (shapes, start)


def test_a_shape_tensor_that_changes_is_read_again() -> None:
    case = make_case(shapes=((4, 6), (6, 4)))
    shapes = torch.tensor(case.shapes)
    first = msdeform.ms_deform_attn(case.value, shapes, None, case.locations, case.weights)
    shapes.copy_(torch.tensor([(6, 4), (4, 6)]))
    second = msdeform.ms_deform_attn(case.value, shapes, None, case.locations, case.weights)
    assert torch.equal(first, attend(case))
    assert torch.equal(second, attend(Case(case.value, [(6, 4), (4, 6)], case.locations, case.weights)))
    assert not torch.equal(first, second)
    with torch.inference_mode():
        shapes = torch.tensor(case.shapes)
        first = msdeform.ms_deform_attn(case.value, shapes, None, case.locations, case.weights)
        shapes.copy_(torch.tensor([(6, 4), (4, 6)]))
        again = msdeform.ms_deform_attn(case.value, shapes, None, case.locations, case.weights)
    assert not torch.equal(first, again)


def test_levels_may_lie_in_another_order_and_leave_gaps() -> None:
    case = make_case(shapes=((4, 6), (3, 2)))
    fine, coarse = case.value.split([24, 6], dim=1)
    gap = torch.full((2, 5, 4, 8), float("nan"))
    moved = torch.cat([coarse, gap, fine], dim=1)
    found = msdeform.ms_deform_attn(moved, case.shapes, [11, 0], case.locations, case.weights)
    assert torch.equal(found, attend(case))


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"queries": 0}, {"heads": 0}, {"channels": 0}, {"points": 0}], ids=str)
def test_empty_tensors_are_ordinary(sizes: dict[str, int]) -> None:
    case = make_case(**sizes).requires_grad()
    output = attend(case)
    batch, queries = case.value.shape[0], case.locations.shape[1]
    assert output.shape == (batch, queries, case.value.shape[2] * case.value.shape[3])
    assert not output.isnan().any() and (output == 0).all()
    output.sum().backward()
    for tensor in case.tensors:
        assert tensor.grad is not None and (tensor.grad == 0).all()


def test_nan_and_infinite_locations_contribute_nothing() -> None:
    case = make_case()
    locations = case.locations.clone()
    locations[0, :, :, 0, 0, 0] = float("nan")
    locations[1, :, :, 0, 0, 1] = float("inf")
    weights = case.weights.clone()
    weights[:, :, :, 0, 0] = 0
    without = msdeform.ms_deform_attn(case.value, case.shapes, None, case.locations, weights)
    found = msdeform.ms_deform_attn(case.value, case.shapes, None, locations, case.weights)
    assert torch.equal(found, without)


def test_the_same_bits_for_any_number_of_threads() -> None:
    case = make_case(queries=300, channels=32)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            run = case.requires_grad()
            output = attend(run, deterministic=True)
            results.append((output, *torch.autograd.grad(output.square().sum(), run.tensors)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("said", [None, False, True])
def test_deterministic_may_be_left_to_torch(said: bool | None) -> None:
    case = make_case()
    assert torch.equal(attend(case, deterministic=said), attend(case))
    batch, queries = case.locations.shape[:2]
    references = torch.rand(batch, queries, len(case.shapes), 2)
    tensors = (case.value, case.shapes, references, case.locations, case.weights)
    found = msdeform.ms_deform_attn_from_offsets(*tensors, deterministic=said)
    assert torch.equal(found, msdeform.ms_deform_attn_from_offsets(*tensors))
    assert torch.equal(msdeform.ms_deform_attn_from_offsets(*tensors, points=3, deterministic=said), found)
    assert msdeform.MSDeformAttn(deterministic=said).deterministic is (said is True)


def test_many_problems_in_turn_and_plans_that_come_back() -> None:
    cases = [make_case(queries=queries) for queries in range(1, 40)]
    expected = [attend(case) for case in cases]
    for case, output in zip(cases, expected, strict=True):
        assert torch.equal(attend(case), output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [16, 37, 100])
def test_on_the_centre_of_a_pixel_the_slope_of_one_side_is_the_gradient(width: int, dtype: torch.dtype) -> None:
    """README's exception. An exact coordinate takes the cell that starts at the pixel. A rounded one takes that cell or
    the one before. Everything else is within the bound."""
    height, queries = 5, width
    generator = torch.Generator().manual_seed(11)
    x = (torch.arange(queries, dtype=torch.float64) + 0.5) / width
    y = (torch.randint(0, height - 1, (queries,), generator=generator) + 0.8) / height
    locations = torch.stack([x, y], -1).view(1, queries, 1, 1, 1, 2)
    case = Case(
        torch.randn(1, height * width, 1, 8, generator=generator),
        [(height, width)],
        locations,
        torch.rand(1, queries, 1, 1, 1, generator=generator) + 0.5,
    ).to(dtype)
    direction = torch.randn(1, queries, 8, generator=generator).to(dtype)
    leaves = case.requires_grad()
    output = msdeform.ms_deform_attn(leaves.value, case.shapes, None, leaves.locations, leaves.weights)
    found = torch.autograd.grad(output, leaves.tensors, direction)
    assert_close(output, reference(case), BOUNDS[dtype])
    exact = reference_gradients(case, direction)
    assert_close(found[0], exact[0], BOUNDS[dtype], "gradient of the values")
    assert_close(found[2], exact[2], BOUNDS[dtype], "gradient of the weights")
    assert_close(found[1][..., 1], exact[1][..., 1], BOUNDS[dtype], "gradient of y")
    # A slope is the same everywhere in a cell.
    step = torch.tensor([0.25 / width, 0.0], dtype=torch.float64)
    before, after = (
        reference_gradients(replace(case, locations=locations + sign * step), direction)[1][..., 0].flatten()
        for sign in (-1, 1)
    )
    ours = found[1][..., 0].flatten().double()
    bound = BOUNDS[dtype] * float((after.abs() + before.abs()).max())
    is_after, is_before = ((ours - slope).abs() <= bound for slope in (after, before))
    assert (is_after | is_before).all()
    if width == 16:  # A power of two: nothing is rounded.
        assert is_after.all()
