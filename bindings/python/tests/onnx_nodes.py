"""Runs exported models: standard nodes by ONNX Runtime, others by ONNX's reference, with this package as nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msdeform
import msdeform.onnx
import numpy as np
import onnx
import onnxruntime
import torch
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import Tensor

# Nodes that compute the operator, or a level of it.
OPERATORS = (
    "GridSample",
    "MSDeformAttn",
    "MSDeformAttnFromOffsets",
    "MMCVMultiScaleDeformableAttention",
    "MultiscaleDeformableAttnPlugin_TRT",
)


class MSDeformAttn(OpRun):  # type: ignore[misc]
    op_domain = "msdeform"

    def _run(self, value: Any, shapes: Any, starts: Any, locations: Any, weights: Any, points: Any = None) -> Any:
        assert shapes.dtype == starts.dtype == np.int64
        return (msdeform.ms_deform_attn(value, shapes, starts, locations, weights, points=points),)


class MSDeformAttnFromOffsets(OpRun):  # type: ignore[misc]
    op_domain = "msdeform"

    def _run(
        self,
        value: Any,
        shapes: Any,
        starts: Any,
        references: Any,
        offsets: Any,
        logits: Any,
        points: Any = None,
        offset_scale: Any = None,
        anchors: Any = None,
        softmax: Any = None,
        nearest: Any = None,
    ) -> Any:
        assert shapes.dtype == starts.dtype == np.int64
        output = msdeform.ms_deform_attn_from_offsets(
            torch.from_numpy(value),
            shapes.tolist(),
            *(torch.from_numpy(tensor) for tensor in (references, offsets, logits)),
            level_start_index=starts.tolist(),
            points=points,
            offset_scale=offset_scale,
            anchors=bool(anchors),
            softmax=bool(softmax),
            nearest=bool(nearest),
        )
        return (output.numpy(),)


class MMCVMultiScaleDeformableAttention(OpRun):  # type: ignore[misc]
    op_domain = "mmdeploy"

    def _run(self, value: Any, shapes: Any, starts: Any, locations: Any, weights: Any, im2col_step: int = 0) -> Any:
        assert shapes.dtype == starts.dtype == np.int64
        assert value.dtype == locations.dtype == weights.dtype and locations.ndim == 6 and weights.ndim == 5
        return (msdeform.ms_deform_attn(value, shapes, starts, locations, weights),)


class MultiscaleDeformableAttnPlugin_TRT(OpRun):  # type: ignore[misc]
    op_domain = "trt.plugins"

    def _run(self, value: Any, shapes: Any, starts: Any, locations: Any, weights: Any) -> Any:
        assert shapes.dtype == starts.dtype == np.int32
        assert value.dtype == locations.dtype == weights.dtype and locations.ndim == 6 and weights.ndim == 5
        output = msdeform.ms_deform_attn(value, shapes, starts, locations, weights)
        return (output.reshape(*output.shape[:2], *value.shape[2:]),)


NODES = [MSDeformAttn, MSDeformAttnFromOffsets, MMCVMultiScaleDeformableAttention, MultiscaleDeformableAttnPlugin_TRT]


def count(model: onnx.ModelProto) -> dict[str, int]:
    """How many nodes there are of those that compute the operator."""
    found = Counter(node.op_type for node in model.graph.node)
    return {name: found[name] for name in OPERATORS if found[name]}


def run(model: onnx.ModelProto, *arguments: Tensor) -> list[Tensor]:
    """The outputs of a model that is valid."""
    onnx.checker.check_model(model, full_check=False)
    given = {each.name: tensor.numpy() for each, tensor in zip(model.graph.input, arguments, strict=True)}
    others = {entry.domain for entry in model.opset_import} - {"", "ai.onnx", "pkg.onnxscript.torch_lib.common"}
    library = getattr(msdeform.onnx, "library_path", None)
    if others and library is None:
        outputs = ReferenceEvaluator(model, new_ops=NODES).run(None, given)
    else:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        if others:
            options.register_custom_ops_library(str(library()))
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, given)
    return [torch.from_numpy(np.asarray(output)) for output in outputs]
