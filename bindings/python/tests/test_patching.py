"""What `patch()` replaces, what it leaves alone, and how it puts things back. Frameworks have files of their own."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pickle
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import msdeform
import pytest
import torch
from made_up_framework import FRAMEWORK_NAME, KNOWN, SOURCE, STARTS, framework, is_ours, write_framework
from oracle import assert_close, make_case, reference
from patched_models import CountCalls

# Which functions ----------------------------------------------------------------------------------------------


def test_functions_of_the_detectron2_family_are_found_wherever_they_are() -> None:
    module = framework()
    importer = types.ModuleType(f"{FRAMEWORK_NAME}.importer")
    importer.ms_deform_attn_core_pytorch = module.ms_deform_attn_core_pytorch  # type: ignore[attr-defined]
    sys.modules[importer.__name__] = importer
    replaced = msdeform.patch("detectron2")
    assert f"{module.__name__}.MSDeformAttnFunction.apply" in replaced
    case = make_case().requires_grad()
    shapes = torch.tensor(case.shapes)
    output = module.MSDeformAttnFunction.apply(
        case.value, shapes, torch.tensor(STARTS), case.locations, case.weights, 64
    )
    assert_close(output, reference(case), 1e-5)
    output.sum().backward()
    assert case.value.grad is not None
    for place in (module, importer):
        assert is_ours(place.ms_deform_attn_core_pytorch)
    msdeform.unpatch()
    assert not is_ours(module.ms_deform_attn_core_pytorch)
    with pytest.raises(RuntimeError, match="not built"):
        module.MSDeformAttnFunction.apply(*([torch.zeros(1)] * 6))


def test_layers_that_are_laid_out_like_those_of_detrex_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on no package index. Its names, its parameters and its compiled half are imitated."""
    renamed = SOURCE.replace("ms_deform_attn_core_pytorch", "multi_scale_deformable_attn_pytorch").replace(
        "MSDeformAttnFunction", "MultiScaleDeformableAttnFunction"
    )
    source = "from detrex import _C\n" + renamed.format(parameters=KNOWN, padding="zeros")
    files = {
        "__init__.py": "",
        "layers/__init__.py": "from .multi_scale_deform_attn import *",
        "layers/multi_scale_deform_attn.py": source,
    }
    for name, text in files.items():
        path = tmp_path / "detrex" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    replaced = msdeform.patch("detrex")
    try:
        with pytest.raises(ImportError, match="_C"):  # As without the patch: nothing stands in for it.
            importlib.import_module("detrex.layers")
        (tmp_path / "detrex/_C.py").write_text("")
        importlib.invalidate_caches()
        module = importlib.import_module("detrex.layers.multi_scale_deform_attn")
        names = ("multi_scale_deformable_attn_pytorch", "MultiScaleDeformableAttnFunction.apply")
        assert {f"{module.__name__}.{name}" for name in names} <= set(replaced)
        # As a layer has it that took the name from the package.
        assert is_ours(importlib.import_module("detrex.layers").multi_scale_deformable_attn_pytorch)
        case = make_case()
        levels = (torch.tensor(case.shapes), torch.tensor(STARTS))
        output = module.MultiScaleDeformableAttnFunction.apply(case.value, *levels, case.locations, case.weights, 64)
        assert_close(output, reference(case), 1e-5)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "detrex"]:
            del sys.modules[name]


def test_unknown_versions_are_left_alone_and_say_why() -> None:
    module = framework("value, shapes, something_new")
    with pytest.warns(UserWarning, match="leaves .*MSDeformAttnFunction.apply alone: it takes .*something_new"):
        replaced = msdeform.patch("detectron2")
    assert not any("MSDeformAttnFunction" in name for name in replaced)
    with pytest.raises(RuntimeError, match="not built"):
        module.MSDeformAttnFunction.apply(torch.zeros(1), 1, 2)


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_a_function_that_computes_something_else_is_left_alone_and_says_why(padding: str) -> None:
    """Neither it nor the extension that it speaks for."""
    module = framework(padding=padding)
    with pytest.warns(UserWarning) as record:
        replaced = msdeform.patch(["detectron2"])
    assert not any(FRAMEWORK_NAME in name for name in replaced)
    names = [f"{module.__name__}.{name}" for name in ("ms_deform_attn_core_pytorch", "MSDeformAttnFunction.apply")]
    assert [str(warning.message).split(" alone: ")[0] for warning in record] == [
        f"msdeform leaves {name}" for name in names
    ]
    left = [place for place in msdeform.patched(verbose=True) if not place.is_replaced]
    assert [place.name for place in left] == names
    assert all("output is not the operator's" in place.reason for place in left), left
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        msdeform.patch("detectron2")  # Said once.
    case = make_case()
    before = module.ms_deform_attn_core_pytorch(case.value, case.shapes, case.locations, case.weights)
    assert float((before - reference(case)).norm()) > 1e-2


def test_a_function_that_takes_no_known_call_is_left_alone() -> None:
    module = framework()
    source = "def deformable_attention_core_func(value, value_spatial_shapes, sampling_locations, attention_weights):\n"
    exec(source + "    raise RuntimeError('only on Sundays')\n", vars(module))
    with pytest.warns(UserWarning, match="takes no call that is known here.*only on Sundays"):
        assert not msdeform.patch("detr")


def test_what_was_replaced_is_listed_with_what_it_was_compared_with() -> None:
    module = framework()
    replaced = msdeform.patch("detectron2")
    places = {place.name: place for place in msdeform.patched(verbose=True)}
    assert set(places) == set(replaced) == set(msdeform.patched())
    assert all(place.is_replaced for place in places.values())
    apply = places[f"{module.__name__}.MSDeformAttnFunction.apply"]
    assert "its slow path ms_deform_attn_core_pytorch gave the same" in apply.reason


def test_an_extension_without_a_slow_path_is_known_by_its_parameters() -> None:
    module = framework()
    del module.ms_deform_attn_core_pytorch
    name = f"{module.__name__}.MSDeformAttnFunction.apply"
    assert name in msdeform.patch("detectron2")
    (place,) = [place for place in msdeform.patched(verbose=True) if place.name == name]
    assert "by its parameters alone" in place.reason


def test_trouble_with_a_function_is_no_trouble_for_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from msdeform.patching import replacing

    def fail(*_: Any) -> Any:
        raise KeyError("something unforeseen")

    module = framework()
    monkeypatch.setattr(replacing, "find_layouts", fail)
    with pytest.warns(UserWarning, match="leaves .* alone: KeyError: 'something unforeseen'"):
        msdeform.patch()
    assert not is_ours(module.ms_deform_attn_core_pytorch)


def test_a_call_in_a_form_that_was_not_tried_goes_to_the_original() -> None:
    """The weights have one axis too many. The original still handles them as before."""
    module = framework()
    msdeform.patch("detectron2")
    case = make_case()
    weights = case.weights[..., None]
    with CountCalls() as count:
        output = module.ms_deform_attn_core_pytorch(case.value, case.shapes, case.locations, weights)
    assert count.forward == 0
    assert_close(output, reference(case), 1e-5)


# Who holds them -----------------------------------------------------------------------------------------------


def test_whoever_holds_a_function_follows_the_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound before the patch or under it, by value or in a file: the same function before, while and after."""
    write_framework(tmp_path, monkeypatch)
    module = importlib.import_module(f"{FRAMEWORK_NAME}.functions")
    function = module.ms_deform_attn_core_pytorch
    before = functools.partial(function)
    signature, source = inspect.signature(function), inspect.getsource(function)
    for _ in range(2):
        msdeform.patch()
        under = pickle.loads(pickle.dumps(functools.partial(function)))
        assert is_ours(before) and is_ours(under) and is_ours(module.ms_deform_attn_core_pytorch)
        assert inspect.signature(function) == signature and inspect.getsource(function) == source
        msdeform.unpatch()
        assert not is_ours(before) and not is_ours(under)
    assert not any("msdeform" in name for name in vars(module)), "nothing stays behind"


# Compiled before, under or after the patch -------------------------------------------------------------------------


class Recorder:
    """A backend that runs graphs as they are, and remembers whether the operator is in them."""

    def __init__(self) -> None:
        self.has_operator: list[bool] = []

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        self.has_operator.append("msdeform" in str(graph.graph))
        return graph.forward


class Method(torch.nn.Module):
    """A layer as packages have it: what is patched is the code of its `forward`."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> torch.Tensor:
        result: torch.Tensor = self.function(*arguments)
        return result


@pytest.mark.parametrize("as_method", [False, True], ids=["function", "layer that holds it"])
@pytest.mark.parametrize("starts_patched", [False, True], ids=["compiled before", "compiled under the patch"])
def test_a_compiled_function_follows_the_patch(starts_patched: bool, as_method: bool) -> None:
    """Patched, unpatched and patched again, more often than PyTorch compiles one function by default."""
    module, backend, case = framework(), Recorder(), make_case()
    arguments = (case.value, case.shapes, case.locations, case.weights)
    called = Method(module.ms_deform_attn_core_pytorch) if as_method else module.ms_deform_attn_core_pytorch
    compiled = torch.compile(called, backend=backend, fullgraph=True)
    if starts_patched:
        msdeform.patch()
    expected = []
    for turn in range(20):
        is_patched = (turn % 2 == 1) != starts_patched
        for _ in range(2):  # The second call runs what the first one has compiled.
            assert_close(compiled(*arguments), reference(case), 1e-5)
        expected.append(is_patched)
        assert backend.has_operator == expected
        if is_patched:
            msdeform.unpatch()
        else:
            msdeform.patch()


def test_a_compiled_extension_follows_the_patch() -> None:
    """`apply` of a function of autograd, which is another one under the patch."""
    module, case = framework(), make_case()
    arguments = (case.value, case.shapes, STARTS, case.locations, case.weights, 64)
    compiled = torch.compile(lambda *given: module.MSDeformAttnFunction.apply(*given), backend=Recorder())
    for _ in range(2):
        with pytest.raises(Exception, match="not built"):
            compiled(*arguments)
        with msdeform.patch("detectron2"):
            assert_close(compiled(*arguments), reference(case), 1e-5)


def test_only_a_patch_that_replaces_something_compiles_again() -> None:
    backend = Recorder()
    compiled = torch.compile(lambda number: number + 1, backend=backend)
    for _ in range(2):
        compiled(torch.zeros(3))
        with msdeform.patch("detr") as names:
            compiled(torch.zeros(3))
            assert names == []
    assert len(backend.has_operator) == 1


def test_a_module_that_is_imported_while_something_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was compiled can contain its functions, so nothing is discarded in the middle of a compilation."""
    write_framework(tmp_path, monkeypatch)
    backend, case = Recorder(), make_case()

    def call(*arguments: Any) -> Any:
        module = importlib.import_module(f"{FRAMEWORK_NAME}.functions")
        return module.ms_deform_attn_core_pytorch(*arguments)

    msdeform.patch()
    compiled = torch.compile(call, backend=backend)
    for _ in range(2):
        assert_close(compiled(case.value, case.shapes, case.locations, case.weights), reference(case), 1e-5)
    assert any(backend.has_operator)


# Calls of patch() ----------------------------------------------------------------------------------------------


def test_a_with_statement_undoes_what_its_call_did() -> None:
    module = framework()
    with msdeform.patch("detr") as names:
        assert names == [] and isinstance(names, list)
        with msdeform.patch(("detr", "detectron2")) as inner:
            assert is_ours(module.ms_deform_attn_core_pytorch) and inner == msdeform.patched()
            with msdeform.patch() as none:
                assert not any(FRAMEWORK_NAME in name for name in none), "a second patch replaces nothing"
            assert is_ours(module.ms_deform_attn_core_pytorch)
        assert not is_ours(module.ms_deform_attn_core_pytorch)
    with pytest.raises(ZeroDivisionError), msdeform.patch():
        raise ZeroDivisionError
    assert msdeform.patched() == [] == msdeform.unpatch()


def test_what_is_not_installed_is_a_warning_and_a_typo_an_error() -> None:
    from msdeform.patching import importing

    with pytest.warns(UserWarning, match='nothing to patch for "libreyolo"') as record:
        assert msdeform.patch("libreyolo") == []
    assert [warning.filename for warning in record] == [__file__]
    with pytest.raises(ValueError, match='unknown framework "ultralitics"; known: "transformers"'):
        msdeform.patch("ultralitics")
    with pytest.raises(ValueError, match='unknown framework "mmvc"'):
        msdeform.patch(["transformers", "mmvc"])
    assert sys.meta_path[0] is importing._FINDER, "the first call still holds"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        msdeform.patch()  # Everything that is installed, quietly.


def test_warnings_point_at_the_line_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_framework(tmp_path, monkeypatch, padding="border")
    (tmp_path / FRAMEWORK_NAME / "__init__.py").write_text("from .functions import MSDeformAttnFunction")
    msdeform.patch()
    with pytest.warns(UserWarning, match="leaves") as record:
        importlib.import_module(FRAMEWORK_NAME)
    msdeform.unpatch()
    with pytest.warns(UserWarning, match="leaves") as again:
        msdeform.patch()
    for warnings_of_one in (record, again):
        assert {warning.filename for warning in warnings_of_one} == {__file__}


# The extension ------------------------------------------------------------------------------------------------


def test_the_extension_that_nobody_can_build_gets_a_stand_in() -> None:
    assert "MultiScaleDeformableAttention" not in sys.modules
    msdeform.patch("detectron2")
    import MultiScaleDeformableAttention as extension  # type: ignore[import-not-found]

    assert importlib.util.find_spec("MultiScaleDeformableAttention") is extension.__spec__
    case = make_case()
    arguments = (case.value, torch.tensor(case.shapes), torch.tensor(STARTS), case.locations, case.weights)
    output = extension.ms_deform_attn_forward(*arguments, 64)
    assert_close(output, reference(case), 1e-5)
    gradients = extension.ms_deform_attn_backward(*arguments, torch.ones_like(output), 64)
    assert [gradient.shape for gradient in gradients] == [tensor.shape for tensor in case.tensors]
    msdeform.unpatch()
    assert "MultiScaleDeformableAttention" not in sys.modules


def test_nobody_gets_the_stand_in_who_did_not_ask() -> None:
    msdeform.patch()
    assert "MultiScaleDeformableAttention" not in sys.modules
    assert importlib.util.find_spec("MultiScaleDeformableAttention") is None
