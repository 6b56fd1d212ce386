"""Levels and points in every form that callers have them in, read when they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msdeform
import pytest
import torch
from oracle import Case, assert_close, make_case, reference, reference_gradients
from torch import Tensor

CASE = make_case()


def attend(case: Case, shapes: Any, **keywords: Any) -> Tensor:
    return msdeform.ms_deform_attn(case.value, shapes, None, case.locations, case.weights, **keywords)


# The forms are made inside of the call, as a model makes them.
LISTS: dict[str, Callable[[Tensor], Any]] = {
    "a list of tensors": lambda shapes: list(shapes),
    "a tuple of tensors": lambda shapes: tuple(shapes),
    "pairs of tensors": lambda shapes: [(height, width) for height, width in shapes],
    "some tensors": lambda shapes: [CASE.shapes[0], shapes[1], (CASE.shapes[2][0], shapes[2, 1])],
    "32 bits": lambda shapes: list(shapes.int()),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("form", LISTS)
def test_lists_that_hold_tensors_are_lists_of_numbers(form: str, compiled: bool) -> None:
    def call(value: Tensor, locations: Tensor, weights: Tensor, shapes: Tensor) -> Tensor:
        return attend(Case(value, [], locations, weights), LISTS[form](shapes))

    torch._dynamo.reset()
    function = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    shapes = torch.tensor(CASE.shapes)
    for case in (CASE, CASE.requires_grad()):
        assert_close(function(*case.tensors, shapes), reference(CASE), 1e-5)
    with torch.no_grad():
        assert_close(function(*CASE.tensors, shapes), reference(CASE), 1e-5)
    assert shapes.tolist() == [list(shape) for shape in CASE.shapes]


def test_the_layer_takes_lists_that_hold_tensors() -> None:
    layer = msdeform.MSDeformAttn(d_model=32, n_levels=3, n_heads=4, n_points=2)
    arguments = torch.randn(2, 5, 32), torch.rand(2, 5, 3, 2), torch.randn(2, 141, 32)
    expected = layer(*arguments, CASE.shapes)
    for form in LISTS.values():
        assert_close(layer(*arguments, form(torch.tensor(CASE.shapes))), expected, 1e-6)


def test_starts_may_be_a_list_of_tensors() -> None:
    starts = list(torch.tensor([0, 108, 138]))
    for shapes in (CASE.shapes, torch.tensor(CASE.shapes)):
        found = msdeform.ms_deform_attn(CASE.value, shapes, starts, CASE.locations, CASE.weights)
        assert_close(found, reference(CASE), 1e-5)


SWAPPED = [(6, 4), (4, 6)]


def through_data(shapes: Tensor) -> None:
    shapes.data.copy_(torch.tensor(SWAPPED))


def through_numpy(shapes: Tensor) -> None:
    shapes.numpy()[:] = SWAPPED


def through_other_memory(shapes: Tensor) -> None:
    shapes.data = torch.tensor(SWAPPED)


@pytest.mark.parametrize("change", [through_data, through_numpy, through_other_memory])
def test_a_shape_tensor_changed_behind_the_back_of_autograd_is_read_again(change: Callable[[Tensor], None]) -> None:
    case = make_case(shapes=((4, 6), (6, 4)))
    shapes = torch.tensor(case.shapes)
    assert_close(attend(case, shapes), reference(case), 1e-5)
    change(shapes)
    assert_close(attend(case, shapes), reference(Case(case.value, SWAPPED, case.locations, case.weights)), 1e-5)


WORDS = "pixels.*need `level_start_index`"


def too_short(case: Case, shapes: Any, **keywords: Any) -> Tensor:
    """A value with more pixels than the levels have."""
    longer = torch.cat([case.value, case.value[:, :5]], dim=1)
    return attend(Case(longer, case.shapes, case.locations, case.weights), shapes, **keywords)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["list", "tensor"])
def test_levels_that_are_not_all_of_the_pixels_are_refused(as_tensor: bool) -> None:
    shapes: Any = torch.tensor(CASE.shapes) if as_tensor else CASE.shapes
    for recorded in (True, False):
        with torch.set_grad_enabled(recorded), pytest.raises(ValueError, match=WORDS):
            too_short(CASE, shapes)
    with pytest.raises(ValueError, match=WORDS):
        too_short(CASE, shapes, points=[3, 3, 3])
    with pytest.raises(ValueError, match=WORDS):
        too_short(CASE.requires_grad(), shapes)


def test_levels_that_are_not_all_of_the_pixels_are_refused_without_contents() -> None:
    with pytest.raises(ValueError, match=WORDS):
        too_short(CASE.to("meta"), CASE.shapes)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["list", "tensor"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_levels_that_are_not_all_of_the_pixels_are_refused_in_graphs(as_tensor: bool, dynamic: bool) -> None:
    torch._dynamo.reset()
    shapes: Any = torch.tensor(CASE.shapes) if as_tensor else CASE.shapes
    compiled = torch.compile(too_short, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    with pytest.raises(Exception, match=WORDS):
        compiled(CASE, shapes)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_levels_that_are_not_all_of_the_pixels_are_refused_in_traces() -> None:
    with pytest.raises(ValueError, match=WORDS):
        torch.jit.trace(lambda value: attend(Case(value, [], CASE.locations, CASE.weights), [(9, 12)] * 3), CASE.value)


def test_a_gap_at_the_end_is_fine_with_starts() -> None:
    longer = torch.cat([CASE.value, torch.full((2, 7, 4, 8), float("nan"))], dim=1)
    for starts in ([0, 108, 138], torch.tensor([0, 108, 138])):
        for shapes in (CASE.shapes, torch.tensor(CASE.shapes)):
            found = msdeform.ms_deform_attn(longer, shapes, starts, CASE.locations, CASE.weights)
            assert_close(found, reference(CASE), 1e-5)


@pytest.mark.parametrize("points", [None, 3, [3, 3, 3]], ids=str)
@pytest.mark.parametrize("flat", [(False, True), (True, False), (True, True)], ids=["weights", "locations", "both"])
def test_samples_in_one_axis_are_the_same_number_of_points_on_each_level(points: Any, flat: tuple[bool, bool]) -> None:
    case = CASE.requires_grad()
    locations = case.locations.flatten(3, 4) if flat[0] else case.locations
    weights = case.weights.flatten(3, 4) if flat[1] else case.weights
    grad_output = torch.randn(2, 11, 32)
    expected = reference_gradients(CASE, grad_output)

    def call(value: Tensor, shapes: Any) -> Tensor:
        return msdeform.ms_deform_attn(value, shapes, None, locations, weights, points=points)

    torch._dynamo.reset()
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        for shapes in (CASE.shapes, torch.tensor(CASE.shapes)):
            output = function(case.value, shapes)
            assert_close(output, reference(CASE), 1e-5)
            for found, exact in zip(torch.autograd.grad(output, case.tensors, grad_output), expected, strict=True):
                assert_close(found, exact, 1e-5)
            with torch.no_grad():
                assert_close(function(case.value, shapes), reference(CASE), 1e-5)
