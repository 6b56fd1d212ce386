"""Finds the attention in ONNX models and rewrites it from any of its forms into any other."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .. import _native
from ..functional import ms_deform_attn

if TYPE_CHECKING:
    from numpy.typing import NDArray

Form = Literal["tensorrt", "mmdeploy", "msdeform", "gridsample", "gather"]
Runtime = Literal["tensorrt", "openvino", "ort-web", "coreml", "ncnn", "ort"]

# The largest difference of ONNX Runtime, which computes in float32 or less, relative to the largest number.
_TOLERANCES = {np.dtype(np.float64): 1e-6, np.dtype(np.float32): 2e-5, np.dtype(np.float16): 2e-2}


@dataclass(frozen=True)
class RewriteReport:
    """The result of `rewrite`.

    Attributes:
        model: the new model's bytes; the old model's bytes if nothing has changed.
        to: the requested form.
        runtime: the runtime that the form was chosen for.
        reason: why that runtime gets this form.
        rewritten: sites that have the form now, each with `name`, `from`, `to`, and `max_error` against the
            reference in float64.
        kept: names of sites that had the form before.
        left: what was left alone, each with `node` and `reason`.
        hidden: nodes of subgraphs and functions that may belong to an attention; `rewrite` does not look there.
        external_files: separate files that hold the model's weights.
        more_axes: tensors of the new model that have more axes than `rank`.
        checked: for each site of standard operators, old or new, the largest difference of ONNX Runtime from
            `msdeform.ms_deform_attn` on random inputs.
    """

    model: bytes = field(repr=False)
    to: str
    rewritten: list[dict[str, Any]]
    kept: list[str]
    left: list[dict[str, str]]
    hidden: int
    external_files: list[str]
    checked: dict[str, float]
    runtime: str | None = None
    reason: str | None = None
    more_axes: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether the model has changed."""
        return bool(self.rewritten)


def _read(model: Any) -> bytes:
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if isinstance(model, (str, os.PathLike)):
        return Path(model).read_bytes()
    serialize = getattr(model, "SerializeToString", None)
    if serialize is None:
        raise TypeError(f"`model` must be a path, bytes or an onnx.ModelProto, found a {type(model).__name__}")
    written: bytes = serialize()
    return written


def inspect(model: Any) -> dict[str, Any]:
    """The attention in a model, by what it computes.

    Args:
        model: a path, bytes, or an `onnx.ModelProto`.

    Returns:
        The output of `msdeform onnx inspect --json`: `sites` with form, sizes and cost, and `left` with the nodes that
        look like an attention but are not recognised, with the reason.
    """
    found: dict[str, Any] = json.loads(_native.onnx_inspect(_read(model)))
    return found


def rewrite(
    model: Any,
    to: Form | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    runtime: Runtime | None = None,
    rank: int | None = None,
    check: bool = True,
) -> RewriteReport:
    """Rewrites every attention of a model into one form.

    Nodes count as an attention only if they gave the results of the reference on random inputs. Other nodes stay as
    they are, and the report gives the reason. An attention that does not exist in the new form stays too.

    Args:
        model: a path, bytes, or an `onnx.ModelProto`.
        to: `"tensorrt"`, `"mmdeploy"`, `"msdeform"`: one node of that operator; `"gridsample"`, `"gather"`: standard
            operators.
        output: the file of the new model, which must not be the old one. An existing file is replaced. If the model has
            its weights in separate files, the file must be in the same folder.
        runtime: the runtime to choose the form for, in place of `to`; the report gives the reason of the choice.
        rank: lists the tensors of the new model with more axes in `more_axes`. New standard operators have 4 at most.
        check: also runs every site of standard operators, before and after, in ONNX Runtime on random inputs, and
            compares it with `ms_deform_attn`. Needs `onnxruntime`.

    Raises:
        RuntimeError: a site gives other results than before. Nothing is written.
        FileNotFoundError: a file with weights of the model is missing. Nothing is written.
    """
    old = _read(model)
    new, described = _native.onnx_rewrite(old, to, runtime, rank)
    report = json.loads(described)
    result = old if new is None else new
    checked: dict[str, float] = {}
    if check and new is not None:
        for bytes_, when in ((old, "before"), (new, "after")):
            checked.update(_check(bytes_, when))
    if output is not None:
        _write(Path(output), result, model, report["external_files"])
    known = RewriteReport.__dataclass_fields__
    return RewriteReport(result, checked=checked, **{name: report[name] for name in known if name in report})


def _write(output: Path, content: bytes, model: Any, external_files: list[str]) -> None:
    if isinstance(model, (str, os.PathLike)):
        source = Path(model)
        for file in external_files:
            if not source.with_name(file).exists():
                raise FileNotFoundError(
                    f"the model keeps weights in {file}, which is not in its folder {source.parent}"
                )
        if output.exists() and output.samefile(source):
            raise ValueError(f"`output` is the file of `model`, {output}; give another name")
        if external_files and output.resolve().parent != source.resolve().parent:
            raise ValueError(
                f"the model keeps weights in {', '.join(external_files)} in its folder; "
                f"write the new one into {source.parent}"
            )
    _native.onnx_write(os.fspath(output), content)


def _check(model: bytes, when: str) -> dict[str, float]:
    """Runs every site of standard operators in ONNX Runtime; returns the largest differences by name."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the check runs ONNX Runtime; `pip install onnxruntime`, or pass `check=False`", name="onnxruntime"
        ) from error
    differences = {}
    for probe, text in _native.onnx_probes(model):
        described = json.loads(text)
        difference = _differs(onnxruntime, probe, described)
        if difference is None:
            continue
        worst, bound = difference
        # Written so that NaN fails.
        if not worst <= bound:
            raise RuntimeError(
                f"`{described['site']}` differs from the attention by {worst:.1e} in ONNX Runtime, {when} it was "
                "rewritten; nothing was written. Please report this"
            )
        differences[f"{described['site']} ({when})"] = worst
    return differences


def _differs(onnxruntime: Any, probe: bytes, described: dict[str, Any]) -> tuple[float, float] | None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Without optimisations, which might change the site.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(probe, options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        # ONNX Runtime has no CPU kernel for GridSample of float16. The evaluation in float64 stands.
        return None
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
    dtypes = {item.name: types[item.type] for item in session.get_inputs()}
    random = np.random.default_rng(0)
    ranges = ((-1.0, 1.0), (-0.2, 1.2), (0.0, 1.0))
    inputs: dict[str, NDArray[Any]] = {
        name: random.uniform(low, high, shape).astype(dtypes[name])
        for (name, shape), (low, high) in zip(described["inputs"], ranges, strict=True)
    }
    found, value, locations, weights = session.run(described["outputs"], inputs)
    levels = described["levels"]
    expected = ms_deform_attn(
        value,
        [(height, width) for height, width, _ in levels],
        [start for _, _, start in levels],
        locations.reshape(*locations.shape[:3], -1, 2),
        weights.reshape(*weights.shape[:3], -1),
        points=described["points"],
    )
    wide = found.astype(np.float64).reshape(expected.shape)
    worst = float(np.abs(wide - expected.astype(np.float64)).max(initial=0.0))
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    dtype = np.dtype(np.float16) if described["is_half"] else value.dtype
    return worst, _TOLERANCES[dtype] * scale
