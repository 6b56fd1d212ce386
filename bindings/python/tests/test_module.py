"""The layer: the parameters and results of Deformable-DETR's."""

from __future__ import annotations

import copy
import math
from typing import Any

import msdeform
import pytest
import torch
from oracle import Case, assert_close, reference
from torch import Tensor

SHAPES = [(6, 8), (3, 4)]
PIXELS = 60


def inputs(d_model: int = 32, coordinates: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.randn(2, 7, d_model)
    points = torch.rand(2, 7, 2, 2) * 0.8 + 0.1
    if coordinates == 4:
        points = torch.cat([points, torch.rand(2, 7, 2, 2) * 0.3 + 0.1], dim=-1)
    return query, points, torch.randn(2, PIXELS, d_model)


def layer(**keywords: Any) -> msdeform.MSDeformAttn:
    module = msdeform.MSDeformAttn(d_model=32, n_levels=2, n_heads=4, n_points=3, **keywords)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return module


def by_the_paper(
    module: msdeform.MSDeformAttn, query: Tensor, points: Tensor, source: Tensor, mask: Tensor | None
) -> Tensor:
    """The layer as the paper describes it, in float64."""
    state = {name: parameter.double() for name, parameter in module.state_dict().items()}

    def project(name: str, x: Tensor) -> Tensor:
        return x.double() @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    value = project("value_proj", source)
    if mask is not None:
        value[mask] = 0
    offsets = project("sampling_offsets", query).view(2, 7, 4, 2, 3, 2)
    weights = project("attention_weights", query).view(2, 7, 4, 6).softmax(-1).view(2, 7, 4, 2, 3)
    centre = points.double()[:, :, None, :, None, :2]
    if points.shape[-1] == 2:
        sizes = torch.tensor([(width, height) for height, width in SHAPES]).double()
        locations = centre + offsets / sizes[None, None, None, :, None]
    else:
        locations = centre + offsets / 3 * points.double()[:, :, None, :, None, 2:] * 0.5
    output = reference(Case(value.view(2, PIXELS, 4, 8), SHAPES, locations, weights))
    return project("output_proj", output)


@pytest.mark.parametrize("coordinates", [2, 4])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shapes", [SHAPES, torch.tensor(SHAPES)], ids=["list", "tensor"])
def test_results_are_those_of_the_paper(coordinates: int, masked: bool, shapes: Any) -> None:
    module, (query, points, source) = layer(), inputs(coordinates=coordinates)
    mask = torch.rand(2, PIXELS) < 0.3 if masked else None
    found = module(query, points, source, shapes, torch.tensor([0, 48]), mask)
    assert_close(found, by_the_paper(module, query, points, source, mask), 2e-6)


def test_parameters_have_the_names_and_shapes_of_checkpoints() -> None:
    module = msdeform.MSDeformAttn()
    assert {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()} == {
        "sampling_offsets.weight": (256, 256),
        "sampling_offsets.bias": (256,),
        "attention_weights.weight": (128, 256),
        "attention_weights.bias": (128,),
        "value_proj.weight": (256, 256),
        "value_proj.bias": (256,),
        "output_proj.weight": (256, 256),
        "output_proj.bias": (256,),
    }
    msdeform.MSDeformAttn().load_state_dict(module.state_dict(), strict=True)


def test_heads_start_out_in_their_own_directions() -> None:
    module = msdeform.MSDeformAttn(d_model=32, n_levels=2, n_heads=8, n_points=4)
    bias = module.sampling_offsets.bias.detach().view(8, 2, 4, 2)
    for head, point in ((0, 0), (1, 1), (2, 3), (5, 2)):
        angle = 2 * math.pi * head / 8
        direction = torch.tensor([math.cos(angle), math.sin(angle)])
        expected = direction / direction.abs().max() * (point + 1)
        assert torch.allclose(bias[head, 1, point], expected, atol=1e-5)
    assert (module.sampling_offsets.weight == 0).all() and (module.attention_weights.weight == 0).all()


def test_points_per_level_agree_with_the_same_number_everywhere() -> None:
    same = layer()
    listed = msdeform.MSDeformAttn(d_model=32, n_levels=2, n_heads=4, n_points=[3, 3])
    listed.load_state_dict(same.state_dict())
    for coordinates in (2, 4):
        arguments = inputs(coordinates=coordinates)
        assert torch.allclose(same(*arguments, SHAPES), listed(*arguments, SHAPES), atol=1e-6)
    uneven = msdeform.MSDeformAttn(d_model=32, n_levels=2, n_heads=4, n_points=[4, 1])
    assert uneven.sampling_offsets.out_features == 4 * 5 * 2
    assert uneven(*inputs(), SHAPES).shape == (2, 7, 32)


def test_it_trains_compiles_copies_and_prints() -> None:
    torch._dynamo.reset()
    module, arguments = layer(), inputs()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    assert torch.allclose(compiled(*arguments, SHAPES), module(*arguments, SHAPES), atol=1e-6)
    module(*arguments, SHAPES).square().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    twin = copy.deepcopy(module)
    assert torch.equal(twin(*arguments, SHAPES), module(*arguments, SHAPES))
    assert "n_heads=4, n_points=3" in repr(module)


def test_autocast_keeps_locations_exact() -> None:
    module, arguments = layer(), inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = module(*arguments, SHAPES)
    assert output.dtype == torch.bfloat16
    assert_close(output, module(*arguments, SHAPES), 2e-2)


def test_inference_and_training_may_share_what_is_cached() -> None:
    module, arguments = layer(), inputs(coordinates=4)
    two = inputs()
    with torch.inference_mode():
        module(*arguments, SHAPES)
        module(*two, SHAPES)
    module(*arguments, SHAPES).sum().backward()
    module(*two, SHAPES).sum().backward()


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"d_model": 30, "n_heads": 4}, "multiple"),
        ({"n_points": [4, 4]}, "n_points"),
        ({"n_heads": 0}, "n_heads"),
        ({"d_model": 0}, "d_model"),
        ({"n_points": -1}, "`n_points`"),
        ({"n_points": [4, 4, 2.5, 4]}, "`n_points`"),
    ],
)
def test_bad_sizes_are_refused(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        msdeform.MSDeformAttn(**keywords)


def test_bad_arguments_are_refused_by_name() -> None:
    module, (query, points, source) = layer(), inputs()
    mask = torch.zeros(2, PIXELS - 1, dtype=torch.bool)
    for name, arguments in {
        "query": (query[..., 1:], points, source, SHAPES),
        "reference_points": (query, points[..., :1], source, SHAPES),
        "input_flatten": (query, points, source[:1], SHAPES),
        "input_spatial_shapes": (query, points, source, SHAPES[:1]),
        "input_padding_mask": (query, points, source, SHAPES, None, mask),
    }.items():
        with pytest.raises(ValueError, match=f"`{name}` has"):
            module(*arguments)
    with pytest.raises(ValueError, match="`reference_points` has shape"):
        module(query, points[:, :, :1], source, SHAPES)


def test_messages_have_the_names_of_the_layer() -> None:
    module, (query, points, source) = layer(), inputs()
    for arguments, error, says in (
        ((query, points, source[:, 1:], SHAPES), ValueError, "`input_flatten` has 59 pixels.*`input_spatial_shapes`"),
        ((query, points, source, [(6.0, 8), (3, 4)]), TypeError, "`input_spatial_shapes` must hold"),
        ((query, points, source, torch.tensor([6, 8])), ValueError, r"`input_spatial_shapes` has shape \[2\]"),
        ((query, points, source, None), TypeError, "`input_spatial_shapes` must hold"),
        ((query, points, source, SHAPES, [0]), ValueError, "`input_level_start_index` has 1 entries"),
        ((None, points, source, SHAPES), TypeError, "`query` is a builtins.NoneType"),
        ((query, points[:, :3], source, SHAPES), ValueError, "`reference_points` has shape"),
        (
            (query, points, source, SHAPES, None, torch.zeros(2, PIXELS)),
            TypeError,
            "`input_padding_mask` is torch.float",
        ),
    ):
        with pytest.raises(error, match=says):
            module(*arguments)
