"""transformers with and without the patch: the same outputs and gradients, files, exports."""

from __future__ import annotations

import importlib
import importlib.util
import io
import pathlib
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import msdeform
import pytest
import torch
from oracle import assert_close, make_case
from patched_models import MODELS, TEXT_MODELS, CountCalls, compare, d_fine, deformable_detr, rt_detr, train
from torch.nn.attention import SDPBackend, sdpa_kernel

transformers = pytest.importorskip("transformers")

# What a model that has the operator says in its source.
MARKS = (b"class MultiScaleDeformableAttention", b"def multi_scale_deformable_attention")


def perturbed(model: Any) -> Any:
    """Fresh models have all-zero offsets and equal weights in many places; that would test little."""
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "sampling_offsets" in key or "attention_weights" in key:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("name", MODELS | TEXT_MODELS)
def test_models_give_the_same_with_and_without(name: str) -> None:
    torch.manual_seed(1)
    model = perturbed((MODELS | TEXT_MODELS)[name][0]().eval())
    compare(model, name, torch.randn(2, 3, 96, 128), 1e-4)


def gradients_of(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """All gradients of a model in training, in one vector."""
    model.zero_grad()
    output = model(pixel_values=pixels).last_hidden_state
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output)
    (output * direction).sum().backward()
    return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


@pytest.mark.parametrize("fuse", [True, False], ids=["layers", "functions"])
@pytest.mark.parametrize("version", ["DFine", "Deimv2"])
@pytest.mark.parametrize("images", [1, 2])
def test_gradients_before_batch_norm_are_the_same_with_and_without(version: str, images: int, fuse: bool) -> None:
    """PyTorch's BatchNorm misreads the gradient of a single image that has channels last: see troubleshooting.md."""
    if not hasattr(transformers, f"{version}Model"):
        pytest.skip(f"transformers {transformers.__version__} has no {version}")
    torch.manual_seed(1)
    model = perturbed(d_fine(version).train()).double()
    pixels = torch.randn(images, 3, 96, 128, dtype=torch.float64)
    expected = gradients_of(model, pixels)
    msdeform.patch("transformers", fuse=fuse)
    with CountCalls() as count:
        found = gradients_of(model, pixels)
    assert count.forward == count.backward == 2 and count.from_offsets == (2 if fuse else 0)
    assert_close(found, expected, 1e-7)


@pytest.mark.parametrize("fuse", [True, False], ids=["layers", "functions"])
@pytest.mark.parametrize("build", [deformable_detr, rt_detr, d_fine])
def test_second_derivatives_are_the_same_with_and_without(build: Any, fuse: bool) -> None:
    """A gradient penalty on the image. The original needs a `grid_sample` that can be differentiated twice."""
    torch.manual_seed(1)
    model = perturbed(build().eval()).double()
    parameters = [each for each in model.parameters() if each.requires_grad]

    def penalty() -> torch.Tensor:
        pixels = torch.randn(2, 3, 64, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        output = model(pixel_values=pixels.requires_grad_()).last_hidden_state
        direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output)
        (gradient,) = torch.autograd.grad((output * direction).sum(), pixels, create_graph=True)
        found = torch.autograd.grad(gradient.square().sum(), parameters, allow_unused=True)
        return torch.cat([each.flatten() for each in found if each is not None])

    # PyTorch's other kernels for the layers around it have no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        try:
            expected = penalty()
        except (NotImplementedError, RuntimeError) as error:
            assert "grid_sampler" in str(error), error
            expected = None
        msdeform.patch("transformers", fuse=fuse)
        with CountCalls() as count:
            found = penalty()
    assert count.forward > 0 and count.backward > 0 and (count.from_offsets > 0) == fuse
    assert found.isfinite().all()
    if expected is not None:
        assert_close(found, expected, 1e-6)


def modules_with_the_operator() -> Iterator[str]:
    """Read off their sources: every version has more of them."""
    spec = importlib.util.find_spec("transformers.models")
    assert spec is not None and spec.submodule_search_locations is not None
    for folder in spec.submodule_search_locations:
        root = pathlib.Path(folder)
        for file in sorted(root.rglob("modeling_*.py")):
            source = file.read_bytes()
            if any(mark in source for mark in MARKS):
                yield ".".join(("transformers", "models", *file.relative_to(root).with_suffix("").parts))


def test_every_place_computes_the_same_as_before() -> None:
    """All models that have the operator, by the function or the layer that is replaced, tiny and without the rest."""
    from msdeform.patching import replacing

    replaced = msdeform.patch("transformers", fuse=False)
    wanted = list(modules_with_the_operator())
    for module in wanted:
        importlib.import_module(module)
    plain, listed = make_case(), make_case(points=[2, 1, 3])
    starts = torch.tensor([0, 108, 138])
    places = {}
    for name in replaced:
        module, _, attribute = name.partition(".MultiScale")
        module, _, attribute = (module, "", "MultiScale" + attribute) if attribute else name.rpartition(".")
        function: Any = importlib.import_module(module)
        for part in attribute.split("."):
            function = getattr(function, part)
        case, tail = (listed, (listed.points, "default")) if name.endswith("_v2") else (plain, ())
        results = []
        for each in (replacing._replaced[function], function):
            leaves = case.requires_grad()
            if name.endswith(".forward"):
                shapes = torch.tensor(case.shapes)
                arguments = (None, leaves.value, shapes, case.shapes, starts, *leaves.tensors[1:], 64)
            else:
                # DETA alone insists on a tensor.
                shapes = torch.tensor(case.shapes) if "modeling_deta." in name else case.shapes
                arguments = (leaves.value, shapes, *leaves.tensors[1:], *tail)
            with CountCalls() as count:
                output = each(*arguments)
            assert count.forward == (each is function), name
            direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
            results.append((output, *torch.autograd.grad(output, leaves.tensors, direction)))
        for before, after in zip(*results, strict=True):
            assert_close(after, before, 1e-5, name)
        places[module] = name
    assert places.keys() == set(wanted), (transformers.__version__, msdeform.patched(verbose=True))
    known = ["deformable_detr", "grounding_dino", "mask2former", "omdet_turbo", "oneformer", "rt_detr", "rt_detr_v2"]
    assert {f"transformers.models.{model}.modeling_{model}" for model in known} <= places.keys()


def test_unpatching_puts_everything_back() -> None:
    from transformers.models.mask2former import modeling_mask2former
    from transformers.models.rt_detr import modeling_rt_detr

    def code() -> tuple[Any, Any]:
        layer = modeling_rt_detr.MultiScaleDeformableAttention
        return layer.forward.__code__, modeling_mask2former.multi_scale_deformable_attention.__code__

    before = code()
    replaced = msdeform.patch("transformers")
    assert not set(code()) & set(before)
    assert "transformers.models.rt_detr.modeling_rt_detr.MultiScaleDeformableAttention.forward" in replaced
    assert msdeform.patch("transformers") == [], "a second patch replaces nothing"
    assert msdeform.unpatch() == replaced and msdeform.patched() == []
    assert code() == before


@pytest.mark.parametrize("model", ["d_fine", "deimv2"])
def test_layers_that_hold_the_function_follow_the_patch_and_fit_into_files(model: str) -> None:
    """Built before the patch, under it or read from a file: they use it while it holds, and no longer."""
    if importlib.util.find_spec(f"transformers.models.{model}") is None:
        pytest.skip(f"transformers {transformers.__version__} has no {model}")
    modeling = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    prefix = {"d_fine": "DFine", "deimv2": "Deimv2"}[model]
    config = getattr(transformers, f"{prefix}Config")()
    layer = getattr(modeling, f"{prefix}MultiscaleDeformableAttention")
    shapes = [(8, 10), (4, 5), (2, 3)]
    pixels = sum(height * width for height, width in shapes)
    queries, values = torch.randn(2, 7, config.d_model), torch.randn(2, pixels, config.d_model)
    boxes = torch.rand(2, 7, 1, 4)

    def calls(one: Any) -> int:
        with CountCalls() as count, torch.no_grad():
            one(
                hidden_states=queries,
                encoder_hidden_states=values,
                reference_points=boxes,
                spatial_shapes=torch.tensor(shapes),
                spatial_shapes_list=shapes,
            )
        return count.forward

    before = layer(config)
    assert calls(before) == 0
    msdeform.patch("transformers")
    under = layer(config)
    from_file = pickle.loads(pickle.dumps(under))
    saved = io.BytesIO()
    torch.save(before, saved)
    saved.seek(0)
    everyone = [before, under, from_file, torch.load(saved, weights_only=False)]
    assert [calls(one) for one in everyone] == [1] * 4
    msdeform.unpatch()
    assert [calls(one) for one in everyone] == [0] * 4


@pytest.mark.parametrize("is_dynamo", [False, True], ids=["TorchScript exporter", "torch.export exporter"])
def test_a_patched_model_is_exported_to_onnx_as_before(is_dynamo: bool, tmp_path: pathlib.Path) -> None:
    onnx = pytest.importorskip("onnx")
    if is_dynamo:
        pytest.importorskip("onnxscript")
    model = rt_detr().eval()
    pixels = torch.randn(1, 3, 64, 64)
    assert msdeform.patch("transformers")
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Wrapped(model), (pixels,), str(path), dynamo=is_dynamo, opset_version=18 if is_dynamo else 17)
    nodes = [node.op_type for node in onnx.load(str(path)).graph.node]
    assert nodes.count("GridSample") == 2 * 3, "two layers of the decoder, three levels each"
    with CountCalls() as count, torch.no_grad():
        model(pixel_values=pixels)
    assert count.forward > 0, "outside of the export the patch holds"


class Wrapped(torch.nn.Module):
    """A model whose output is a tensor."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.model(pixel_values=pixels).last_hidden_state
        return hidden


def test_two_training_runs_give_the_same_bits() -> None:
    """20 steps in PyTorch's deterministic mode, and nothing of ours warns."""
    msdeform.patch("transformers")
    pixels = torch.randn(2, 3, 64, 64)

    def loss(model: Any) -> torch.Tensor:
        result: torch.Tensor = model(pixel_values=pixels).last_hidden_state.abs().mean()
        return result

    runs = [train(lambda: perturbed(rt_detr().train()), loss) for _ in range(2)]
    assert runs[0].keys() == runs[1].keys()
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in runs[0])
