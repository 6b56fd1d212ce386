"""ONNX: models with this package's operators as files that other programs run.

`table(target)` is what `torch.onnx.export(..., dynamo=True, custom_translation_table=...)` takes, `exporting(target)` a
context for the exporter by TorchScript and for `torch.export`. Both say which nodes a call becomes.

Nothing of `onnx`, `onnxscript` or PyTorch is imported before one of them is called.
"""

from ._export import TARGETS, exporting, table

__all__ = ["TARGETS", "exporting", "table"]
