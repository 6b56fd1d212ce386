"""Levels in tensors on a GPU, samples in one axis, transforms: the CPU's tests on a GPU."""

from __future__ import annotations

from typing import Any

import msdeform
import pytest
import torch
from oracle import Case, assert_close, make_case, reference, reference_gradients
from torch import Tensor

SWAPPED = [(6, 4), (4, 6)]


def attend(case: Case, shapes: Any) -> Tensor:
    return msdeform.ms_deform_attn(case.value, shapes, None, case.locations, case.weights)


def test_lists_of_tensors_on_the_gpu_are_read() -> None:
    case = make_case(device="cuda")
    shapes = torch.tensor(case.shapes, device="cuda")
    for form in (list(shapes), [tuple(pair) for pair in shapes]):
        for recorded in (True, False):
            with torch.set_grad_enabled(recorded):
                assert_close(attend(case, form), reference(case), 1e-5)


def test_a_shape_tensor_with_other_numbers_or_other_memory_is_read_again() -> None:
    case = make_case(shapes=((4, 6), (6, 4)), device="cuda")
    swapped = reference(Case(case.value, SWAPPED, case.locations, case.weights))
    for change in ("in place", "other memory"):
        shapes = torch.tensor(case.shapes, device="cuda")
        assert_close(attend(case, shapes), reference(case), 1e-5)
        if change == "in place":
            shapes.copy_(torch.tensor(SWAPPED))
        else:
            shapes.data = torch.tensor(SWAPPED, device="cuda")
        assert_close(attend(case, shapes), swapped, 1e-5, change)


def test_levels_that_are_not_all_of_the_pixels_are_refused() -> None:
    case = make_case(device="cuda")
    longer = Case(torch.cat([case.value, case.value[:, :5]], dim=1), case.shapes, case.locations, case.weights)
    for shapes in (case.shapes, torch.tensor(case.shapes, device="cuda")):
        for recorded in (True, False):
            with torch.set_grad_enabled(recorded), pytest.raises(ValueError, match="need `level_start_index`"):
                attend(longer, shapes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("flat", [(False, True), (True, False), (True, True)], ids=["weights", "locations", "both"])
def test_samples_in_one_axis(flat: tuple[bool, bool], dtype: torch.dtype) -> None:
    case = make_case(device="cuda", dtype=dtype).requires_grad()
    locations = case.locations.flatten(3, 4) if flat[0] else case.locations
    weights = case.weights.flatten(3, 4) if flat[1] else case.weights
    bound = 1e-5 if dtype is torch.float32 else 2e-3
    with torch.no_grad():
        assert_close(attend(Case(case.value, [], locations, weights), case.shapes), reference(case), bound)
    output = attend(Case(case.value, [], locations, weights), case.shapes)
    grad_output = torch.randn_like(output)
    found = torch.autograd.grad(output, case.tensors, grad_output)
    for gradient, exact in zip(found, reference_gradients(case, grad_output), strict=True):
        assert_close(gradient, exact, bound)


def test_transforms_and_batches_of_gradients() -> None:
    case = make_case(device="cuda")
    grad_output = torch.randn(3, 2, 11, 32, device="cuda")
    expected = [reference_gradients(case, one) for one in grad_output]

    def function(*tensors: Tensor) -> Tensor:
        return attend(Case(tensors[0], [], tensors[1], tensors[2]), case.shapes)

    _, pull_back = torch.func.vjp(function, *case.tensors)
    leaves = case.requires_grad().tensors
    batched = torch.autograd.grad(function(*leaves), leaves, grad_output, is_grads_batched=True)
    for index, exact in enumerate(expected):
        for gradient, one, wanted in zip(pull_back(grad_output[index]), batched, exact, strict=True):
            assert_close(gradient, wanted, 1e-5)
            assert_close(one[index], wanted, 1e-5)


def test_the_reference_computes_on_the_gpu() -> None:
    case = make_case(device="cuda")
    found = msdeform.reference.ms_deform_attn(case.value, case.shapes, None, case.locations, case.weights)
    assert_close(found, reference(case), 1e-5)
