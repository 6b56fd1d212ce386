"""The readable implementation that users may compare with, and what a call counts for in PyTorch's FLOP counter."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msdeform
import numpy as np
import pytest
import torch
from oracle import BOUNDS, Case, assert_close, make_case, reference, reference_gradients
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode


def plain(case: Case, starts: Any = None) -> Tensor:
    return msdeform.reference.ms_deform_attn(
        case.value, case.shapes, starts, case.locations, case.weights, points=case.points
    )


@pytest.mark.parametrize("points", [3, [4, 1, 2], [3, 0, 2]], ids=str)
@pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
def test_it_agrees_with_grid_sample_on_tensors(points: Any, dtype: torch.dtype) -> None:
    case = make_case(points=points, dtype=dtype).requires_grad()
    output = plain(case)
    assert output.dtype == dtype
    assert_close(output, reference(case), BOUNDS[dtype])
    grad_output = torch.randn_like(output)
    found = torch.autograd.grad(output, case.tensors, grad_output)
    for gradient, exact in zip(found, reference_gradients(case, grad_output), strict=True):
        assert_close(gradient, exact, BOUNDS[dtype])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_it_agrees_with_grid_sample_on_arrays(dtype: Any) -> None:
    case = make_case()
    arrays = [tensor.numpy().astype(dtype) for tensor in case.tensors]
    output = msdeform.reference.ms_deform_attn(arrays[0], case.shapes, None, arrays[1], arrays[2])
    assert isinstance(output, np.ndarray) and output.dtype == dtype
    exact = Case(torch.tensor(arrays[0]), case.shapes, torch.tensor(arrays[1]), torch.tensor(arrays[2]))
    assert_close(torch.tensor(output), reference(exact), BOUNDS[exact.value.dtype])


def test_starts_flat_samples_and_wrong_pixels_are_as_in_the_operator() -> None:
    case = make_case(shapes=((4, 6), (3, 2)))
    fine, coarse = case.value.split([24, 6], dim=1)
    moved = torch.cat([coarse, torch.full((2, 5, 4, 8), float("nan")), fine], dim=1)
    flat = Case(moved, case.shapes, case.locations.flatten(3, 4), case.weights.flatten(3, 4))
    assert_close(plain(flat, [11, 0]), reference(case), 1e-5)
    with pytest.raises(ValueError, match="need `level_start_index`"):
        plain(flat)


def test_places_that_are_none_contribute_nothing_and_have_no_gradient() -> None:
    case = make_case()
    locations = case.locations.clone()
    locations[0, :, :, 0, 0, 0] = float("nan")
    locations[1, :, :, 0, 0, 1] = float("-inf")
    locations[1, :, :, 1, 0] = 1e30
    for attend in (plain, lambda case: msdeform.ms_deform_attn(case.value, case.shapes, None, *case.tensors[1:])):
        odd = Case(case.value, case.shapes, locations, case.weights).requires_grad()
        output = attend(odd)
        assert output.isfinite().all()
        gradient = torch.autograd.grad(output.sum(), odd.locations)[0]
        assert (gradient[:, :, :, 0, 0] == 0).all() and (gradient[1, :, :, 1, 0] == 0).all()


def test_it_has_second_derivatives_and_forward_mode() -> None:
    case = make_case(batch=1, shapes=((3, 4), (2, 2)), heads=1, channels=2, queries=2, points=2).to(torch.float64)

    def attend(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return plain(Case(value, case.shapes, locations, weights))

    assert torch.autograd.gradcheck(attend, case.requires_grad().tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(attend, case.requires_grad().tensors)


# 2 images, 11 queries, 4 heads, 9 samples, 8 channels, 4 pixels of 2 operations.
FLOPS = 2 * 11 * 4 * 9 * 8 * 8


@pytest.mark.parametrize("as_tensor", [False, True], ids=["list", "tensor"])
def test_the_flop_counter_knows_forward_and_backward(as_tensor: bool) -> None:
    case = make_case()

    def attend(case: Case) -> Tensor:
        if as_tensor:
            shapes = torch.tensor(case.shapes)
            return torch.ops.msdeform.ms_deform_attn.tensor_levels(*case.tensors, shapes, None, None)
        return msdeform.ms_deform_attn(case.value, case.shapes, None, case.locations, case.weights)

    with FlopCounterMode(display=False) as counter:
        attend(case)
    assert counter.get_total_flops() == FLOPS
    for wanted, share in (((True, True, True), 2), ((True, False, False), 1), ((False, False, True), 1)):
        tensors = [tensor.clone().requires_grad_(flag) for tensor, flag in zip(case.tensors, wanted, strict=True)]
        with FlopCounterMode(display=False) as counter:
            attend(Case(tensors[0], case.shapes, tensors[1], tensors[2])).sum().backward()
        assert counter.get_total_flops() == (1 + share) * FLOPS, wanted


@pytest.mark.parametrize("imports", ["msdeform, {0}", "{0}, msdeform", "msdeform, torch, {0}"])
def test_a_first_call_is_counted(imports: str) -> None:
    program = f"""
import {imports.format("torch.utils.flop_counter")}
with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
    tensors = torch.zeros(1, 20, 2, 4), [(4, 5)], None, torch.zeros(1, 5, 2, 1, 3, 2), torch.zeros(1, 5, 2, 1, 3)
    msdeform.ms_deform_attn(*tensors)
print(counter.get_total_flops())
"""
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert int(said) == 5 * 2 * 3 * 4 * 8


def test_the_flops_of_the_layer_are_those_of_its_parts() -> None:
    layer = msdeform.MSDeformAttn(d_model=32, n_levels=3, n_heads=4, n_points=3)
    query, source = torch.randn(2, 11, 32), torch.randn(2, 141, 32)
    with FlopCounterMode(display=False) as counter:
        layer(query, torch.rand(2, 11, 3, 2), source, make_case().shapes)
    products = 2 * 2 * 32 * (11 * (4 * 9 * 2 + 4 * 9 + 32) + 141 * 32)
    assert counter.get_total_flops() == FLOPS + products


# A program may import the FLOP counter late. A program that does not count never imports it.
COUNTS_LATER = """
import sys, torch, msdeform
value, locations, weights = torch.randn(1, 4, 1, 8), torch.rand(1, 3, 1, 1, 2, 2), torch.rand(1, 3, 1, 1, 2)
msdeform.ms_deform_attn(value, [(2, 2)], None, locations, weights)
assert "torch.utils.flop_counter" not in sys.modules and "triton" not in sys.modules
finders = len(sys.meta_path)
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    msdeform.ms_deform_attn(value, [(2, 2)], None, locations, weights)
assert counter.get_total_flops() == 3 * 2 * 8 * 8 and len(sys.meta_path) == finders - 1
"""


def test_a_first_call_imports_no_counter_and_one_that_comes_later_counts() -> None:
    finished = subprocess.run([sys.executable, "-c", COUNTS_LATER], capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stdout + finished.stderr
