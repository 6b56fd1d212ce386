"""Bad input: a Python exception that names the argument and says what to do; the process survives."""

from __future__ import annotations

from typing import Any

import msdeform
import numpy as np
import pytest
import torch
from oracle import make_case


def arguments() -> dict[str, Any]:
    case = make_case()
    return {
        "value": case.value,
        "spatial_shapes": case.shapes,
        "level_start_index": None,
        "sampling_locations": case.locations,
        "attention_weights": case.weights,
    }


GOOD = arguments()

BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rank of value": (
        {"value": torch.zeros(2, 141, 32)},
        ValueError,
        "`value` has shape [2, 141, 32], expected",
    ),
    "pixels": ({"value": torch.zeros(2, 140, 4, 8)}, ValueError, "140 pixels"),
    "batch": ({"value": torch.zeros(3, 141, 4, 8)}, ValueError, "`sampling_locations` has shape"),
    "heads": ({"value": torch.zeros(2, 141, 5, 8)}, ValueError, "expected [2, queries, 5, 3, 3, 2]"),
    "integer values": (
        {"value": torch.zeros(2, 141, 4, 8, dtype=torch.int64)},
        TypeError,
        "`value` is torch.int64",
    ),
    "integer weights": (
        {"attention_weights": torch.ones(2, 11, 4, 3, 3, dtype=torch.int32)},
        TypeError,
        "`attention_weights` is torch.int32",
    ),
    "complex values": (
        {"value": torch.zeros(2, 141, 4, 8, dtype=torch.complex64)},
        TypeError,
        "`value` is torch.complex64",
    ),
    "rank of locations": (
        {"sampling_locations": torch.zeros(2, 11, 4)},
        ValueError,
        "`sampling_locations` has shape [2, 11, 4]; expected [batch, queries, heads, levels, points, 2]",
    ),
    "samples that levels cannot share": (
        {"sampling_locations": torch.zeros(2, 11, 4, 10, 2)},
        ValueError,
        "10 samples are not the same number of points on each of 3 levels; give `points=[...]`",
    ),
    "pairs": (
        {"sampling_locations": torch.zeros(2, 11, 4, 3, 3, 3)},
        ValueError,
        "`sampling_locations` has shape",
    ),
    "queries": (
        {"attention_weights": torch.zeros(2, 12, 4, 3, 3)},
        ValueError,
        "expected [2, 11, 4, 3, 3] or [2, 11, 4, 9], as many queries and points as `sampling_locations`",
    ),
    "points": (
        {"attention_weights": torch.zeros(2, 11, 4, 3, 4)},
        ValueError,
        "`attention_weights` has shape",
    ),
    "missing locations": (
        {"sampling_locations": None},
        TypeError,
        "`sampling_locations` must be a torch.Tensor",
    ),
    "array next to tensors": (
        {"attention_weights": np.zeros((2, 11, 4, 3, 3), dtype=np.float32)},
        TypeError,
        "`attention_weights` must be a torch.Tensor like `value`, found a numpy.ndarray",
    ),
    "weights of another device": (
        {"attention_weights": torch.zeros(2, 11, 4, 3, 3, device="meta")},
        ValueError,
        "`attention_weights` on meta; move them",
    ),
    "sparse values": (
        {"value": torch.zeros(2, 141, 4, 8).to_sparse()},
        TypeError,
        "`value` is torch.sparse_coo; expected a dense tensor",
    ),
    "shapes without numbers": (
        {"spatial_shapes": torch.ones(3, 2, dtype=torch.int64, device="meta")},
        ValueError,
        "`spatial_shapes` has no numbers in it",
    ),
    "another number of points": ({"points": 4}, ValueError, "expected [2, queries, 4, 3, 4, 2]"),
    "points without a number": (
        {"points": 2.5},
        TypeError,
        "`points` must be a number of points, 0 or more, or a list",
    ),
    "half a point": ({"points": [3, 2.5, 3]}, ValueError, "`points` must be a number of points"),
    "negative points": ({"points": [3, -3, 3]}, ValueError, "`points` must be a number of points"),
    "a negative number of points": ({"points": -3}, ValueError, "`points` must be a number of points"),
    "pixels without a level": (
        {"value": torch.zeros(2, 150, 4, 8)},
        ValueError,
        "`value` has 150 pixels, but the levels of `spatial_shapes` [(9, 12), (5, 6), (1, 3)] have 141; values with "
        "gaps between levels need `level_start_index`",
    ),
    "a level too many": ({"spatial_shapes": [(9, 12), (5, 6), (1, 4)]}, ValueError, "have 142"),
    "float shapes": ({"spatial_shapes": torch.ones(3, 2)}, TypeError, "`spatial_shapes` is torch.float32"),
    "shapes that require a gradient": (
        {"spatial_shapes": torch.ones(3, 2, requires_grad=True)},
        TypeError,
        "`spatial_shapes` is torch.float32; expected integers",
    ),
    "form of shapes": (
        {"spatial_shapes": torch.ones(3, 3, dtype=torch.int64)},
        ValueError,
        "expected [levels, 2]",
    ),
    "flat shapes": ({"spatial_shapes": [9, 12, 5, 6]}, TypeError, "`spatial_shapes`"),
    "triples": ({"spatial_shapes": [(9, 12, 1), (5, 6, 1), (1, 3, 1)]}, ValueError, "`spatial_shapes`"),
    "level without pixels": ({"spatial_shapes": [(9, 12), (5, 6), (0, 3)]}, ValueError, "level 2 is 0 x 3"),
    "negative level": ({"spatial_shapes": [(9, 12), (5, 6), (-1, 3)]}, ValueError, "level 2 is -1 x 3"),
    "overlap": ({"level_start_index": [0, 100, 138]}, ValueError, "overlap"),
    "past the end": (
        {"level_start_index": [0, 108, 139]},
        ValueError,
        "level 2 ends at pixel 142, but `value` has only 141 pixels; check `spatial_shapes` and `level_start_index`",
    ),
    "starts without a number": ({"level_start_index": [0, 108, None]}, ValueError, "`level_start_index` leads to None"),
    "half a start": ({"level_start_index": [0, 108, 138.5]}, ValueError, "`level_start_index` leads to 138.5"),
    "points of a level without a number": ({"points": [3, 3, None]}, ValueError, "`points` must be a number"),
    "shapes of other tensors": (
        {"spatial_shapes": [torch.tensor([9, 12, 1])] * 3},
        ValueError,
        "`spatial_shapes` must hold one (height, width) per level",
    ),
    "sizes that are tensors of many": (
        {"spatial_shapes": [(torch.tensor([9, 12]), 1)] * 3},
        ValueError,
        "`spatial_shapes` must hold one (height, width) per level",
    ),
    "locations without pairs": (
        {"sampling_locations": torch.zeros(2, 11, 4, 3, 3)},
        ValueError,
        "`sampling_locations` has shape [2, 11, 4, 3, 3]; expected",
    ),
    "threads": ({"threads": 2}, TypeError, "`threads` is for calls on arrays; for tensors call `torch.set_num"),
    "starts": ({"level_start_index": [0, 108]}, ValueError, "2 entries for 3 levels"),
    "negative start": (
        {"level_start_index": torch.tensor([-1, 108, 138])},
        ValueError,
        "must not be negative",
    ),
    "points per level": (
        {
            "points": [3, 3],
            "sampling_locations": torch.zeros(2, 11, 4, 9, 2),
            "attention_weights": torch.zeros(2, 11, 4, 9),
        },
        ValueError,
        "`points` has 2 entries for 3 levels",
    ),
    "sum of points": (
        {
            "points": [3, 3, 4],
            "sampling_locations": torch.zeros(2, 11, 4, 9, 2),
            "attention_weights": torch.zeros(2, 11, 4, 9),
        },
        ValueError,
        "expected [2, queries, 4, 10, 2]",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_it_names_the_argument_and_the_next_call_works(name: str) -> None:
    change, error, says = BAD[name]
    with pytest.raises(error) as caught:
        msdeform.ms_deform_attn(**{**GOOD, **change})
    assert says in str(caught.value), caught.value
    assert "interleaved" not in str(caught.value), "a word of the library, not of its users"
    assert not msdeform.ms_deform_attn(**GOOD).isnan().any()


@pytest.mark.parametrize("name", ["sampling_locations", "attention_weights"])
def test_required_arguments_are_required(name: str) -> None:
    with pytest.raises(TypeError, match=f"missing a required argument: '{name}'"):
        msdeform.ms_deform_attn(**{key: given for key, given in GOOD.items() if key != name})


def test_tensors_beside_arrays_are_named_if_they_cannot_be_arrays() -> None:
    arrays = {key: given.numpy() if isinstance(given, torch.Tensor) else given for key, given in GOOD.items()}
    locations = GOOD["sampling_locations"]
    for given in (locations.clone().requires_grad_(), locations.to("meta"), locations.to_sparse()):
        with pytest.raises(TypeError, match="`sampling_locations` cannot be read as an array"):
            msdeform.ms_deform_attn(**{**arrays, "sampling_locations": given})


def test_a_tensor_without_storage_is_refused() -> None:
    value = GOOD["value"].clone()
    value.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="`value` has no memory behind it"):
        msdeform.ms_deform_attn(**{**GOOD, "value": value})


def test_what_was_freed_before_the_backward_pass_is_refused() -> None:
    case = make_case().requires_grad()
    output = msdeform.ms_deform_attn(case.value, case.shapes, None, case.locations, case.weights)
    case.value.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="`value` has no memory behind it"):
        output.sum().backward()


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises((ValueError, RuntimeError), match="device"):
        msdeform.ms_deform_attn(**{**GOOD, "value": GOOD["value"].to("meta")})


def test_sizes_beyond_64_bits_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="`level_start_index` leads to"), torch.no_grad():
        msdeform.ms_deform_attn(**{**GOOD, "level_start_index": [0, 2**80, 138]})
    with pytest.raises(ValueError, match="the levels of `spatial_shapes`"), torch.no_grad():
        msdeform.ms_deform_attn(**{**GOOD, "spatial_shapes": [(2**40, 2**40), (5, 6), (1, 3)]})


def test_a_gradient_of_the_wrong_shape_is_refused() -> None:
    case = make_case()
    levels = [9, 12, 0, 3, 5, 6, 108, 3, 1, 3, 138, 3]
    with pytest.raises(ValueError, match="`grad_output` has shape"):
        torch.ops.msdeform.ms_deform_attn_backward(torch.zeros(2, 11, 31), *case.tensors, levels, [True, True, True])
