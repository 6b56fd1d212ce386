"""The check of models in runtimes: what it prints, what it calls a difference, and its exit codes."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msdeform.onnx
import numpy as np
import pytest
from msdeform.onnx import _check, _runtimes

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

FIXTURES = Path(__file__).resolve().parents[3] / "crates/msdeform-onnx/fixtures"
MODEL = FIXTURES / "point_lists_torchscript.onnx"


def of(monkeypatch: pytest.MonkeyPatch, *runtimes: _runtimes.Runtime) -> None:
    monkeypatch.setattr(_check, "RUNTIMES", list(runtimes))


def changed(by: float) -> _runtimes.Runtime:
    """ONNX Runtime with results that are off by a factor."""

    def load(model: bytes, stack: ExitStack) -> Any:
        compute = _runtimes._onnxruntime(model, stack)
        return lambda inputs: compute(inputs) * (1 + by)

    return _runtimes.Runtime("changed", "onnxruntime", "", load)


def test_both_forms_are_right_in_onnx_runtime_and_gathers_are_exact_at_the_edges() -> None:
    report = msdeform.onnx.check(MODEL, ["onnxruntime"])
    assert report.left == [] and report.passed
    assert [(row.form, row.dtype) for row in report.rows] == [
        ("gridsample", "f32"),
        ("gather", "f32"),
        ("gridsample", "f16"),
        ("gather", "f16"),
    ]
    for row in report.rows:
        assert row.version == onnxruntime.__version__ and row.ms is not None
        if row.form == "gather":
            # Locations that are infinite or NaN contribute nothing.
            bound = {"f32": 1e-6, "f16": 5e-3}[row.dtype]
            assert row.error is not None and row.error < bound
            assert row.edge_error is not None and row.edge_error < bound


def test_msdeform_itself_is_a_form() -> None:
    report = msdeform.onnx.check(MODEL, ["onnxruntime"], forms=["msdeform"])
    assert [row.form for row in report.rows] == ["msdeform", "msdeform"] and report.passed


def test_a_difference_fails_and_so_does_nan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for by in (1e-4, float("nan")):
        of(monkeypatch, changed(by))
        assert _check.main([str(MODEL)]) == 1
        assert "DIFFERS" in capsys.readouterr().out
    of(monkeypatch, changed(1e-7))
    assert _check.main([str(MODEL), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] and len(told["rows"]) == 4


def test_what_a_runtime_prints_is_not_in_the_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def load(model: bytes, stack: ExitStack) -> Any:
        compute = _runtimes._onnxruntime(model, stack)

        def talking(inputs: Any) -> Any:
            os.write(1, b"a line of a runtime\n")
            if os.name == "posix":
                ctypes.CDLL(None).printf(b"a line in a buffer of C\n")
            return compute(inputs)

        return talking

    of(monkeypatch, _runtimes.Runtime("talking", "onnxruntime", "", load))
    assert _check.main([str(MODEL), "--json"]) == 0
    out, err = capfd.readouterr()
    assert len(json.loads(out)["rows"]) == 4
    assert "a line of a runtime" in err
    assert os.name != "posix" or "a line in a buffer of C" in err


def test_what_is_missing_or_refuses_is_a_row_and_must_not_be_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(model: bytes, stack: ExitStack) -> Any:
        raise NotImplementedError("no GridSample\nmore")

    refusing = _runtimes.Runtime("refusing", "onnxruntime", "", refuses)
    missing = _runtimes.Runtime("missing", "no-such-package", "pip install no-such-package", refuses)
    of(monkeypatch, missing, refusing)
    report = msdeform.onnx.check(MODEL)
    assert report.passed, "nothing differs"
    assert [row.note for row in report.rows[:2]] == [
        "not installed: pip install no-such-package",
        "does not run: no GridSample",
    ]
    assert "pip install no-such-package" in str(report)
    assert _check.main([str(MODEL)]) == 3, "nothing was compared"
    assert "no installed runtime runs it" in capsys.readouterr().err
    of(monkeypatch, missing, refusing, changed(0))
    assert _check.main([str(MODEL)]) == 0


def test_sites_of_the_same_sizes_run_once_and_a_terminal_shows_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = []

    def load(model: bytes, stack: ExitStack) -> Any:
        loaded.append(model)
        return _runtimes._onnxruntime(model, stack)

    of(monkeypatch, _runtimes.Runtime("counting", "onnxruntime", "", load))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    model = onnx.load(MODEL)
    [first] = msdeform.onnx.inspect(model)["sites"]
    twice = onnx.compose.merge_models(
        onnx.compose.add_prefix(model, "a/"), onnx.compose.add_prefix(model, "b/"), io_map=[]
    )
    report = msdeform.onnx.check(twice)
    assert str(report).count("\n") == 4 and f"\na/{first['name']} and 1 more  gridsample  f32" in str(report)
    assert len(loaded) == 4, "two forms in two dtypes"
    assert [row.site for row in report.rows] == [f"{side}/{first['name']}" for side in "ab" for _ in range(4)]
    assert report.rows[4:] == [replace(row, site=f"b/{first['name']}") for row in report.rows[:4]]
    shown = capsys.readouterr().err
    assert f"counting: 1 of 8, a/{first['name']} as gridsample in f32" in shown
    assert shown.endswith("\r\x1b[K"), "the line is gone when all is done"


def test_files_that_cannot_be_read_and_names_that_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"text")
    for path, words in ((bad, "no ONNX model"), (tmp_path / "absent.onnx", "absent.onnx")):
        assert _check.main([str(path)]) == 3
        assert words in capsys.readouterr().err
    with pytest.raises(ValueError, match="unknown runtime `tensorflow`; known: onnxruntime"):
        msdeform.onnx.check(MODEL, ["tensorflow"])
    with pytest.raises(SystemExit) as error:
        _check.main([str(MODEL), "--runtime", "tensorflow"])
    assert error.value.code == 2


def test_the_command_calls_the_check_in_its_own_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from msdeform import _native

    monkeypatch.setenv("MSDEFORM_PYTHON", sys.executable)
    words = ["msdeform", "onnx", "check", str(MODEL), "--runtime", "onnxruntime"]
    assert _native.command_line(words) == 0
    assert _native.command_line([*words[:3], str(FIXTURES / "export.py")]) == 3


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_models_of_other_dtypes_load_and_agree(dtype: str) -> None:
    """Coordinates are in float32; ONNX Runtime has no `GridSample` of float64."""
    model = onnx.load(MODEL)
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    random = np.random.default_rng(0)
    inputs = {}
    ranges = {"value": (-1, 1), "locations": (-0.2, 1.2), "weights": (0, 1)}
    shapes = {"value": (2, 32, 2, 4), "locations": (2, 5, 2, 6, 2), "weights": (2, 5, 2, 6)}
    value_kind = "float32" if dtype == "float64" else dtype
    kinds = {"value": value_kind, "locations": dtype, "weights": value_kind}
    infos = []
    for name, shape in shapes.items():
        inputs[name] = random.uniform(*ranges[name], shape).astype(kinds[name])
        infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(inputs[name].dtype), shape))
    levels = np.array([[6, 4], [3, 2], [2, 1]], np.int64)
    starts = np.array([0, 24, 30], np.int64)
    node = helper.make_node(
        "MSDeformAttn",
        ["value", "shapes", "starts", "locations", "weights"],
        ["output"],
        domain="msdeform",
        points=[3, 1, 2],
    )
    out = helper.make_tensor_value_info("output", helper.np_dtype_to_tensor_dtype(inputs["value"].dtype), (2, 5, 8))
    constants = [numpy_helper.from_array(levels, "shapes"), numpy_helper.from_array(starts, "starts")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("msdeform", 1)]
    graph = helper.make_graph([node], "one", infos, [out], constants)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    expected = msdeform.ms_deform_attn(
        wide["value"], levels, starts, wide["locations"], wide["weights"], points=[3, 1, 2]
    )
    for form in ("gridsample", "gather"):
        report = msdeform.onnx.rewrite(model, to=form, check=False)
        onnx.checker.check_model(report.model, full_check=True)
        session = onnxruntime.InferenceSession(report.model, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, inputs)
        assert found.dtype == inputs["value"].dtype
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < (5e-3 if dtype == "float16" else 1e-6)
