"""Whole layers under `patch()`: which are fused, what they compute, and when the original still runs."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import itertools
import pickle
import sys
import types
import warnings
from typing import Any

import msdeform
import pytest
import torch
from attention_layers import (
    CONFIG,
    DEFORMABLE_DETR,
    HEADS,
    POINTS,
    QUERIES,
    RFDETR,
    ULTRALYTICS,
    WIDTH,
    Call,
    build,
    layer_of,
    layers_of_transformers,
    make_call,
    runs,
)
from msdeform import _operators
from oracle import BOUNDS, assert_close, relative_error
from patched_models import CountCalls, deformable_detr
from surroundings import MADE_UP
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")


def is_fused(call: Any) -> bool:
    """Whether a call goes through the operator from offsets; it uses the operator in any case."""
    with CountCalls() as count, torch.no_grad():
        call()
    assert count.forward == 1, "the patch does not hold"
    return count.from_offsets == 1


# Which layers, and what they compute ---------------------------------------------------------------------------


def check(kind: type[nn.Module], name: str) -> None:
    """Every form that the original takes, against the original in float64."""
    msdeform.unpatch()
    forms = itertools.product((2, 4), (False, True), (False, True))
    calls = [call for call in (make_call(kind, *form) for form in forms) if runs(call)]
    exact = [call.to(torch.float64).everything() for call in calls]
    assert calls, "none that it takes"
    msdeform.patch(name.partition(".")[0])
    for call, expected in zip(calls, exact, strict=True):
        assert is_fused(call), (name, call.by_role.keys())
        found = call.everything()
        assert found.keys() == expected.keys()
        for what, tensor in found.items():
            assert_close(tensor, expected[what], 1e-4 if "." in what else 1e-5, f"{name}: {what}")


def test_every_layer_of_transformers_is_fused_and_computes_the_same() -> None:
    kinds = list(layers_of_transformers())
    replaced = msdeform.patch("transformers")
    names = {f"{kind.__module__}.{kind.__qualname__}.forward": kind for kind in kinds}
    layers = {place.name for place in msdeform.patched(verbose=True) if place.is_layer and place.is_replaced}
    assert layers == names.keys() and layers < set(replaced), msdeform.patched(verbose=True)
    assert len(layers) >= 10
    # Many are copies of each other: one of each.
    different = {inspect.getsource(inspect.unwrap(kind.forward)): name for name, kind in names.items()}
    for name in different.values():
        check(names[name], name)


@pytest.mark.parametrize("path", [ULTRALYTICS, RFDETR])
def test_layers_of_other_packages_are_fused_and_compute_the_same(path: str) -> None:
    pytest.importorskip(path.partition(".")[0])
    kind = layer_of(path)
    assert f"{path}.forward" in msdeform.patch(path.partition(".")[0])
    check(kind, path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("coordinates", [2, 4])
def test_half_precision_is_closer_to_exact_than_before(dtype: torch.dtype, coordinates: int) -> None:
    call = make_call(layer_of(DEFORMABLE_DETR), coordinates, is_per_level=True).to(dtype)
    exact = call.to(torch.float64).everything()
    errors = []
    for fuse in (False, True):
        with msdeform.patch("transformers", fuse=fuse):
            assert is_fused(call) == fuse
            found = call.everything()
        assert all(tensor.dtype is dtype for tensor in found.values())
        errors.append({name: relative_error(tensor, exact[name]) for name, tensor in found.items()})
    plain, fused = errors
    # Projections round before and after the operator, which alone is within a quarter of this.
    assert fused["output"] <= 4 * BOUNDS[dtype], fused
    assert 1.5 * fused["output"] <= plain["output"], (fused, plain)
    assert all(fused[name] <= 1.1 * plain[name] for name in fused), (fused, plain)


def test_autocast_gives_the_formats_of_before() -> None:
    call = make_call(layer_of(DEFORMABLE_DETR), is_per_level=True)
    exact = call.to(torch.float64).everything()
    results = []
    for fuse in (False, True):
        with msdeform.patch("transformers", fuse=fuse), torch.autocast("cpu", torch.bfloat16):
            assert is_fused(call) == fuse
            results.append(call.everything())
    for name, tensor in results[1].items():
        assert tensor.dtype is results[0][name].dtype, name
    assert relative_error(results[1]["output"], exact["output"]) <= 4 * BOUNDS[torch.bfloat16]


def test_a_whole_model_in_half_precision_and_the_weights_that_it_returns() -> None:
    torch.manual_seed(1)
    model = deformable_detr().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "sampling_offsets" in key or "attention_weights" in key:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    rounded = model.bfloat16()
    pixels = torch.randn(1, 3, 256, 320).bfloat16()
    with torch.no_grad():
        exact = copy.deepcopy(rounded).double()(pixel_values=pixels.double(), output_attentions=True)
        outputs = []
        for fuse in (False, True):
            with msdeform.patch("transformers", fuse=fuse):
                outputs.append(rounded(pixel_values=pixels, output_attentions=True))
    for kind in ("encoder_attentions", "cross_attentions"):
        for found, weights in zip(getattr(outputs[1], kind), getattr(exact, kind), strict=True):
            assert_close(found, weights, 0.1, kind)
    plain, fused = (relative_error(output.last_hidden_state, exact.last_hidden_state) for output in outputs)
    assert fused < plain, (fused, plain)


# Versions that are not known -----------------------------------------------------------------------------------

SOURCE_OF = DEFORMABLE_DETR.rpartition(".")[0]
CHANGES = {
    "computes something else": ("* 0.5", "* 0.25", "output is not the operator's"),
    "asks for an attribute": ("self.output_proj(output)", "self.output_proj(output) * self.gate", "has no .*'gate'"),
    "takes something else": ("reference_points=None,", "reference_points=None, temperature=1.0,", "version is unknown"),
    "uses what was ignored": (
        "# batch_size,",
        "scale = kwargs.get('scale')\n        # batch_size,",
        "it uses `kwargs`",
    ),
    "drops in training": ("output = self.output_proj(output)", "output = F.dropout(output, 0.5, self.training)", "not"),
}


def made_up(old: str, new: str) -> Any:
    """A layer of transformers, as another version might have it."""
    kind = layer_of(DEFORMABLE_DETR)
    module = types.ModuleType(f"{MADE_UP[-1]}.modeling")
    vars(module).update({key: each for key, each in vars(sys.modules[SOURCE_OF]).items() if not key.startswith("__")})
    source = inspect.getsource(kind)
    assert old in source
    exec(compile(source.replace(old, new), "made_up.py", "exec"), vars(module))
    sys.modules[module.__name__] = module
    return vars(module)[kind.__name__]


@pytest.mark.parametrize("change", CHANGES)
def test_a_version_that_is_not_known_is_left_alone_and_says_why(change: str) -> None:
    old, new, reason = CHANGES[change]
    kind = made_up(old, new)
    if "kwargs" in new and "kwargs" not in inspect.signature(kind.forward).parameters:
        pytest.skip(f"transformers {transformers.__version__} has no such parameter")
    torch_state = torch.get_rng_state()
    with pytest.warns(UserWarning, match=f"leaves .*{kind.__name__}.forward alone: .*{reason}") as record:
        replaced = msdeform.patch("transformers")
    assert len(record) == 1 and f"{kind.__module__}.{kind.__name__}.forward" not in replaced
    assert torch.equal(torch.get_rng_state(), torch_state), "the trial drew from the global generator"
    place = next(place for place in msdeform.patched(verbose=True) if place.name.startswith(kind.__module__))
    assert place.is_layer and not place.is_replaced
    call = make_call(layer_of(DEFORMABLE_DETR), is_per_level=True)
    call.layer.__class__ = kind
    if "gate" not in new:
        assert not is_fused(call), "the function inside is replaced as ever"


def test_the_same_source_in_another_module_is_known() -> None:
    """The counterpart of the tests above: it is the change that matters."""
    kind = made_up("self.im2col_step = 64", "self.im2col_step = 32")
    assert f"{kind.__module__}.{kind.__name__}.forward" in msdeform.patch("transformers")


def test_a_function_inside_that_was_replaced_before_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("transformers.models.mask2former.modeling_mask2former")
    own = module.multi_scale_deformable_attention

    def of_somebody(*arguments: Any) -> Tensor:
        calls.append(1)
        result: Tensor = own(*arguments)
        return result

    calls: list[int] = []
    call = make_call(module.Mask2FormerPixelDecoderEncoderMultiscaleDeformableAttention, is_per_level=True)
    with msdeform.patch("transformers"):
        assert is_fused(call)
        monkeypatch.setattr(module, "multi_scale_deformable_attention", of_somebody)
        assert not is_fused(call) and calls == [1]
    with pytest.warns(UserWarning, match="`multi_scale_deformable_attention` was replaced"):
        msdeform.patch("transformers")
    call()
    assert calls == [1, 1]


# Who watches, and who changes things ---------------------------------------------------------------------------


@pytest.fixture
def call() -> Call:
    return make_call(layer_of(DEFORMABLE_DETR), is_per_level=True)


def test_hooks_of_every_module_inside_are_called(call: Call) -> None:
    msdeform.patch("transformers")
    seen = []
    for name, module in call.layer.named_modules():
        if name != "attn":
            module.register_forward_hook(lambda *_, name=name: seen.append(name))
    assert is_fused(call)
    assert sorted(seen) == sorted(["", "value_proj", "sampling_offsets", "attention_weights", "output_proj"])
    handle = call.layer.attn.register_forward_hook(lambda *_: seen.append("attn"))
    assert not is_fused(call) and seen.count("attn") == 1
    handle.remove()
    assert is_fused(call)
    with_global = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    assert not is_fused(call) and "MultiScaleDeformableAttention" in seen
    with_global.remove()
    assert is_fused(call)


def test_what_is_put_in_place_of_the_function_inside_is_called(call: Call) -> None:
    msdeform.patch("transformers")
    own = call.layer.attn.forward
    call.layer.attn.forward = lambda *arguments, **named: own(*arguments, **named) * 0  # As hub kernels do.
    assert not is_fused(call)
    assert torch.equal(call.output, call.layer.output_proj.bias.expand(2, QUERIES, WIDTH))
    del call.layer.attn.forward
    call.layer.attn = nn.Sequential()  # Something else altogether.
    with pytest.raises(TypeError):
        call()


def test_subclasses_follow(call: Call) -> None:
    kind = type(call.layer)

    class Doubled(kind):  # type: ignore[valid-type, misc]
        def forward(self, *arguments: Any, **named: Any) -> Any:
            output, weights = super().forward(*arguments, **named)
            return 2 * output, weights

    class Masked(kind):  # type: ignore[valid-type, misc]
        """Inherits `forward` and changes what that calls."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.value_proj = nn.Sequential(self.value_proj, nn.Identity())

    named, before = call.named, call.output
    masked = Masked(CONFIG, HEADS, POINTS)
    masked.load_state_dict(
        {key.replace("value_proj", "value_proj.0"): each for key, each in call.layer.state_dict().items()}
    )
    call.layer.__class__ = Doubled
    msdeform.patch("transformers")
    for layer, factor in ((call.layer, 2), (masked, 1)):
        assert is_fused(lambda layer=layer: layer(**named))
        assert_close(layer(**named)[0], factor * before, 1e-5)


@pytest.mark.parametrize("fuse", [True, False], ids=["layers", "functions"])
@pytest.mark.parametrize("model", ["deformable_detr", "rt_detr", "d_fine", "mask2former"])
@pytest.mark.parametrize("starts_patched", [False, True], ids=["compiled before", "compiled under the patch"])
def test_a_compiled_layer_follows_the_patch(starts_patched: bool, model: str, fuse: bool) -> None:
    [kind] = [kind for kind in layers_of_transformers() if kind.__module__.endswith(f"modeling_{model}")]
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(str(graph.graph))
        return graph.forward

    names = vars(sys.modules[kind.__module__])
    before_compiling = set(names)
    call = make_call(kind, coordinates=4 if model == "d_fine" else 2, is_per_level=model != "d_fine")
    before, compiled, named = call.output, torch.compile(call.layer, backend=backend), call.named
    expected = "ms_deform_attn_from_offsets" if fuse else "ms_deform_attn."
    for turn in range(6):
        if (turn % 2 == 1) != starts_patched:
            msdeform.patch("transformers", fuse=fuse)
        for _ in range(2):
            found = compiled(**named)
            assert_close(found[0] if isinstance(found, tuple) else found, before, 1e-5)
        is_ours = any(f"msdeform.{expected}" in graph for graph in graphs)
        assert is_ours == bool(msdeform.patched()), graphs
        assert is_ours == any("msdeform" in graph for graph in graphs)
        graphs.clear()
        msdeform.unpatch()
    torch._dynamo.reset()
    for name in set(names) - before_compiling:  # What compiled code refers to: PyTorch leaves it in the module.
        del names[name]


@pytest.mark.parametrize("model", ["rt_detr_v2", "d_fine"])
def test_discrete_sampling_is_left_to_the_original(model: str) -> None:
    [kind] = [kind for kind in layers_of_transformers() if kind.__module__.endswith(f"modeling_{model}")]
    call = make_call(kind)
    before = call.output
    msdeform.patch("transformers")
    assert is_fused(call)
    assert_close(call.output, before, 1e-5)
    attribute = "method" if model == "rt_detr_v2" else "decoder_method"
    setattr(call.layer, attribute, "discrete")
    with CountCalls() as count:
        after = call.output
    assert count.forward == 0
    msdeform.unpatch()
    assert torch.equal(after, call.output)


def test_a_call_that_is_wrong_is_refused_in_the_words_of_before(call: Call) -> None:
    call.by_role["sizes"] = [(48, 64), (24, 32), (12, 15)]
    with pytest.raises(ValueError) as before:
        call()
    msdeform.patch("transformers")
    with pytest.warns(UserWarning, match="does not run in a call"), pytest.raises(ValueError) as after:
        call()
    assert str(after.value) == str(before.value)


def test_what_the_operator_refuses_the_original_computes(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from msdeform.patching import calling, fusing

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("not today")

    before = call.output
    msdeform.patch("transformers")
    monkeypatch.setattr(fusing, "ms_deform_attn_from_offsets", refuse)
    monkeypatch.setattr(calling, "_said", set())
    with pytest.warns(UserWarning, match="does not run in a call of .*forward.*not today") as record:
        assert_close(call.output, before, 1e-5)
        call()
    assert len(record) == 1, "said once"


# The patch -----------------------------------------------------------------------------------------------------


def test_fusing_can_be_left_out_and_is_undone(call: Call) -> None:
    function = type(call.layer).forward
    before = function.__code__
    with msdeform.patch("transformers", fuse=False) as names:
        assert function.__code__ is before and not is_fused(call)
        assert not any(place.is_layer for place in msdeform.patched(verbose=True))
        with msdeform.patch("transformers") as more:
            assert is_fused(call)
            assert f"{DEFORMABLE_DETR}.forward" in more and not set(more) & set(names)
        assert function.__code__ is before and not is_fused(call)
    msdeform.patch()
    assert is_fused(call)
    assert f"{DEFORMABLE_DETR}.forward" in msdeform.unpatch()
    assert function.__code__ is before
    assert not any("msdeform" in name for name in function.__globals__), "nothing stays behind"


def test_where_the_operator_is_made_of_parts_layers_stay_as_they_are(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on devices that have kernels for parts alone: the plain operator runs, and nothing gets slower."""
    msdeform.patch("transformers")
    assert is_fused(call)
    monkeypatch.setattr(_operators, "_ONE_PASS", frozenset())
    assert not is_fused(call)


def test_layers_fit_into_files_and_are_copied(call: Call) -> None:
    state = {key: tensor.clone() for key, tensor in call.layer.state_dict().items()}
    msdeform.patch("transformers")
    saved = io.BytesIO()
    torch.save(call.layer, saved)
    saved.seek(0)
    others = [
        pickle.loads(pickle.dumps(call.layer)),
        copy.deepcopy(call.layer),
        torch.load(saved, weights_only=False),
        build(type(call.layer)),
    ]
    others[-1].load_state_dict(state)
    expected = call.output
    for layer in others:
        assert layer.state_dict().keys() == state.keys()
        other = Call(layer, call.by_role)
        assert is_fused(other) and torch.equal(other.output, expected)
    msdeform.unpatch()
    for layer in others:
        with CountCalls() as count:
            assert_close(Call(layer, call.by_role).output, expected, 1e-5)
        assert count.forward == 0


def test_a_compiled_layer_is_one_graph_that_is_made_once_and_follows_the_patch(call: Call) -> None:
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(str(graph.graph))
        return graph.forward

    torch._dynamo.reset()
    layer = torch.compile(call.layer, backend=backend, fullgraph=True)

    def compiled() -> Tensor:
        result: Tensor = layer(**call.named)[0]
        return result

    with msdeform.patch("transformers"):
        expected = call.output
        for _ in range(3):
            assert_close(compiled(), expected, 1e-6)
        call.layer.zero_grad()
        compiled().sum().backward()
        assert call.layer.sampling_offsets.weight.grad is not None
    assert len(graphs) == 1 and "ms_deform_attn_from_offsets" in graphs[0], graphs
    assert_close(compiled(), expected, 1e-5)
    assert len(graphs) == 2 and "msdeform" not in graphs[1]


def test_exports_and_traces_take_the_original(call: Call) -> None:
    msdeform.patch("transformers")
    programs = [torch.export.export(call.layer, (), call.named, strict=False).graph]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named = {key: each for key, each in call.named.items() if isinstance(each, Tensor)}
        sizes = call.by_role["sizes"]
        call.layer.requires_grad_(False)  # As constants of a trace must be.
        traced = torch.jit.trace(
            lambda *tensors: call.layer(**dict(zip(named, tensors, strict=True)), spatial_shapes_list=sizes)[0],
            tuple(each.detach() for each in named.values()),
        )
    programs.append(traced.graph)
    for program in programs:
        assert "grid_sampler" in str(program) and "msdeform" not in str(program)
    assert is_fused(call), "and outside of them the operator"


def test_transforms_and_modes(call: Call) -> None:
    exact = call.to(torch.float64).output
    msdeform.patch("transformers")
    named = call.named

    def loss(query: Tensor) -> Tensor:
        result: Tensor = call.layer(**{**named, "hidden_states": query})[0].sum()
        return result

    query = named["hidden_states"].detach()
    gradient = torch.func.grad(loss)(query)
    [expected] = torch.autograd.grad(call.output.sum(), [named["hidden_states"]])
    assert_close(gradient, expected, 1e-5)
    with torch.inference_mode():
        assert_close(call.output, exact, 1e-5)
    with torch.device("meta"):
        meta = build(type(call.layer))
    on_meta = {
        role: given.to("meta") if isinstance(given, Tensor) and role not in ("shapes", "starts") else given
        for role, given in call.by_role.items()
    }
    assert Call(meta, on_meta).output.shape == (2, QUERIES, WIDTH)
    checkpointed = torch.utils.checkpoint.checkpoint(loss, query.requires_grad_(), use_reentrant=False)
    [again] = torch.autograd.grad(checkpointed, [query])
    assert_close(again, expected, 1e-6)


def test_training_in_deterministic_mode_gives_the_same_bits(call: Call) -> None:
    msdeform.patch("transformers")
    torch.use_deterministic_algorithms(True)
    try:
        runs_of_it = [call.everything() for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(runs_of_it[0][name], runs_of_it[1][name]) for name in runs_of_it[0])
