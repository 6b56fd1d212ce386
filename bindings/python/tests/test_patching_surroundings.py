"""Patching at the time of an import, and where a patched function still runs the original."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msdeform
import pytest
import torch
from made_up_framework import FRAMEWORK_NAME, framework, is_ours, write_framework
from msdeform import _native
from msdeform.patching import calling
from oracle import assert_close, make_case, reference
from patched_models import CountCalls

# When ---------------------------------------------------------------------------------------------------------


def test_modules_are_patched_when_they_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_framework(tmp_path, monkeypatch)
    finders = list(sys.meta_path)
    replaced = msdeform.patch("detectron2")
    assert not any(FRAMEWORK_NAME in name for name in replaced)
    module = importlib.import_module(f"{FRAMEWORK_NAME}.functions")
    assert is_ours(module.ms_deform_attn_core_pytorch)
    assert f"{FRAMEWORK_NAME}.functions.ms_deform_attn_core_pytorch" in replaced == msdeform.patched()
    assert type(module.__loader__).__name__ == "SourceFileLoader" and "exec_module" not in vars(module.__loader__)
    module = importlib.reload(module)
    assert is_ours(module.ms_deform_attn_core_pytorch)
    msdeform.unpatch()
    assert not is_ours(module.ms_deform_attn_core_pytorch)
    importlib.reload(module)
    assert not is_ours(module.ms_deform_attn_core_pytorch) and sys.meta_path == finders


def test_an_import_that_fails_fails_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_framework(tmp_path, monkeypatch)
    (tmp_path / FRAMEWORK_NAME / "broken.py").write_text("raise ImportError('needs a compiler')")
    msdeform.patch()
    for _ in range(2):
        with pytest.raises(ImportError, match="needs a compiler"):
            importlib.import_module(f"{FRAMEWORK_NAME}.broken")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module(f"{FRAMEWORK_NAME}.no_such_module")


def test_a_module_that_looks_names_up_elsewhere_is_asked_for_none() -> None:
    module = framework()

    def look_up(name: str) -> Any:
        raise ModuleNotFoundError(f"{name} is in a package that is not installed")

    module.__getattr__ = look_up  # type: ignore[method-assign]
    msdeform.patch()
    assert is_ours(module.ms_deform_attn_core_pytorch)


@pytest.mark.parametrize(
    "surroundings",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.device("meta"),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch._subclasses.FakeTensorMode(),
        CountCalls,
    ],
    ids=["no_grad", "inference_mode", "meta", "autocast", "fake", "mode"],
)
def test_what_surrounds_an_import_does_not_matter(
    surroundings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_framework(tmp_path, monkeypatch)
    msdeform.patch()
    numbers, dtype = torch.get_rng_state(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings(), surroundings():
            warnings.simplefilter("error")
            module = importlib.import_module(f"{FRAMEWORK_NAME}.functions")
    finally:
        torch.set_default_dtype(dtype)
    assert is_ours(module.ms_deform_attn_core_pytorch)
    assert torch.equal(torch.get_rng_state(), numbers), "the trial drew from the global generator"


def test_patching_imports_no_framework() -> None:
    program = (
        "import sys, msdeform; names = msdeform.patch(); "
        "loaded = {name.partition('.')[0] for name in sys.modules}; "
        "assert names == [] and not loaded & {'transformers', 'ultralytics', 'rfdetr', 'MultiScaleDeformableAttention'}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# Where the original is better ----------------------------------------------------------------------------------


def test_exports_and_transforms_take_the_original() -> None:
    module = framework()
    msdeform.patch()
    case = make_case()

    class Layer(torch.nn.Module):
        def forward(self, value: Any, locations: Any, weights: Any) -> Any:
            return module.ms_deform_attn_core_pytorch(value, case.shapes, locations, weights)

    # Before torch 2.7 nothing says that a strict export is one.
    for strict in (False, True) if hasattr(torch.compiler, "is_exporting") else (False,):
        program = torch.export.export(Layer(), case.tensors, strict=strict)
        assert "grid_sampler" in str(program.graph) and "msdeform" not in str(program.graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(Layer(), case.tensors)
    assert "grid_sampler" in str(traced.graph) and "msdeform" not in str(traced.graph)
    expected = reference(case)
    gradient = torch.func.grad(lambda value: Layer()(value, *case.tensors[1:]).sum())(case.value)
    assert gradient.shape == case.value.shape
    batched = torch.func.vmap(Layer())(*(tensor[None] for tensor in case.tensors))
    assert_close(batched[0], expected, 1e-5)
    assert is_ours(module.ms_deform_attn_core_pytorch), "and outside of them the operator"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_formats_than_the_one_that_was_tried(dtype: torch.dtype) -> None:
    module = framework()
    msdeform.patch()
    case = make_case(dtype=dtype)
    output = module.ms_deform_attn_core_pytorch(case.value, case.shapes, case.locations, case.weights)
    assert output.dtype is dtype
    assert_close(output, reference(case), 1e-2)


def test_what_the_operator_refuses_the_original_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it took it still takes, and a wrong call it refuses in its own words."""
    from msdeform.patching import calling

    module, case = framework(), make_case()
    msdeform.patch()
    call = module.ms_deform_attn_core_pytorch
    with pytest.warns(UserWarning, match="does not run in a call of .*ms_deform_attn_core_pytorch") as record:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="split_with_sizes"):
                call(case.value[:, 1:], case.shapes, case.locations, case.weights)
    assert [warning.filename for warning in record] == [__file__], "once, and where it was called"

    def refuse(*_: Any) -> Any:
        raise RuntimeError("no driver")

    monkeypatch.setattr(calling, "attend", refuse)
    with CountCalls() as count:
        assert_close(call(case.value, case.shapes, case.locations, case.weights), reference(case), 1e-5)
    assert count.forward == 0


@pytest.mark.parametrize("axis", ["batch", "queries"])
def test_nothing_to_do_is_done(axis: str) -> None:
    module = framework()
    case = make_case(**{axis: 0})
    arguments = (case.value, case.shapes, case.locations, case.weights)
    with msdeform.patch():
        after = module.ms_deform_attn_core_pytorch(*arguments)
    try:
        before = module.ms_deform_attn_core_pytorch(*arguments)
    except RuntimeError:
        return  # Better than before.
    assert after.shape == before.shape


def test_a_gpu_that_failed_is_an_error_and_one_that_cannot_be_used_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(calling, "_said", set())
    monkeypatch.setattr(calling, "_given_up", set())
    on_gpu: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match="illegal"):
        calling._report("f", on_gpu, RuntimeError("an illegal memory access"))
    assert not calling._given_up
    with pytest.warns(UserWarning, match="does not run on cuda:0.*no NVRTC"):
        calling._report("f", on_gpu, _native.Unavailable("no NVRTC"))
    assert calling._given_up == {on_gpu.device}
