"""TensorRT as far as PyPI has it without the builder: its bindings over the lean runtime.

`tensorrt-cu13-bindings` is linked to three libraries that no package index has. Three stubs stand in for them, and pass
on to `tensorrt-lean-cu13-libs` what they do not define, the registry of plugins above all. Plugins are registered,
created and asked by NVIDIA's own code; nothing is built or run.

Symbolic sizes exist only inside of the builder, so `Size` stands in for them. A plugin must not read a size that is not
constant.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

_STUBBED = """
void *createInferBuilder_INTERNAL(void *logger, int version) { return 0; }
void *createNvOnnxParser_INTERNAL(void *network, void *logger, int version) { return 0; }
void *createNvOnnxParserRefitter_INTERNAL(void *refitter, void *logger, int version) { return 0; }
void *getBuilderPluginRegistry(int capability) { return 0; }
int getNvOnnxParserVersion(void) { return 0; }
_Bool initLibNvInferPlugins(void *logger, char const *name) { return 1; }
"""


def load(folder: Path) -> Any:
    """The module `tensorrt`. Skips the tests where a package or a C compiler is missing."""
    lean = pytest.importorskip("tensorrt_lean_libs", reason="tensorrt-lean-cu13-libs is not installed")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("there is no C compiler for the stubs of TensorRT's libraries")
    (runtime,) = Path(lean.__file__).parent.glob("libnvinfer_lean.so.*")
    ctypes.CDLL(str(runtime))
    source = folder / "stubs.c"
    source.write_text(_STUBBED)
    for library in ("nvinfer", "nvinfer_plugin", "nvonnxparser"):
        name = f"lib{library}.so{runtime.suffix}"
        options = ["-shared", "-fPIC", "-w", "-Wl,--no-as-needed", f"-Wl,-soname,{name}"]
        subprocess.run([compiler, *options, "-o", folder / name, source, runtime], check=True, timeout=60)
        # The bindings find it by its name.
        ctypes.CDLL(str(folder / name))
    bindings = pytest.importorskip("tensorrt_bindings", reason="tensorrt-cu13-bindings is not installed")
    # As the package `tensorrt` does, which needs the libraries that are missing here.
    sys.modules["tensorrt"] = bindings
    return bindings


@dataclass
class Size:
    """A size that TensorRT computes from the sizes of the inputs."""

    value: int
    constant: bool = False

    def is_constant(self) -> bool:
        return self.constant

    def get_constant_value(self) -> int:
        assert self.constant, "the plugin read a size that is not known when an engine is built"
        return self.value

    def is_size_tensor(self) -> bool:
        return False


class Builder:
    """The expressions of sizes, as the interface that plugins see."""

    def __init__(self, trt: Any) -> None:
        of = trt.DimensionOperation
        self.operations = {
            of.SUM: lambda a, b: a + b,
            of.PROD: lambda a, b: a * b,
            of.MAX: max,
            of.CEIL_DIV: lambda a, b: -(-a // b),
        }

    def constant(self, value: int) -> Size:
        return Size(value, constant=True)

    def operation(self, operation: Any, first: Size, second: Size) -> Size:
        return Size(self.operations[operation](first.value, second.value), first.constant and second.constant)


class Sizes(list[Any]):
    """A list of sizes, as long as it is told to be."""

    def __init__(self, length: int) -> None:
        super().__init__([None] * length)


def stand_in_for_sizes(trt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the plugins of `tensorrt.plugin` compute with `Size`."""
    from tensorrt.plugin import _tensor  # type: ignore[import-not-found]

    monkeypatch.setattr(trt, "IDimensionExpr", Size)
    monkeypatch.setattr(trt, "DimsExprs", Sizes)
    monkeypatch.setattr(_tensor, "SymExprImpl", lambda number: number._expr.value)


@dataclass
class Planned:
    """What TensorRT learns of a node when it builds an engine."""

    types: list[Any]
    shape: list[int]
    formats: list[Any]
    name: str
    ptx: str
    launch: SimpleNamespace
    extra: list[int]


class Extra(Sizes):
    """Where a plugin puts its integers."""

    def __init__(self) -> None:
        super().__init__(0)

    @property
    def nbSymExprs(self) -> int:
        return len(self)

    @nbSymExprs.setter
    def nbSymExprs(self, length: int) -> None:
        self[:] = [None] * length


def plan(trt: Any, name: str, tensors: list[tuple[Any, tuple[int, ...]]], open_axes: set[int], fields: Any) -> Planned:
    """Takes a node through the calls that TensorRT makes. `open_axes` may have any size when the engine runs."""
    creator = trt.get_plugin_registry().get_creator(name, "1", "msdeform")
    request = trt.QuickPluginCreationRequest.STRICT_AOT
    collection = trt.PluginFieldCollection([trt.PluginField(*field) for field in fields])
    plugin = creator.create_plugin(name, "msdeform", collection, trt.TensorRTPhase.BUILD, request)
    types = [kind for kind, _ in tensors]
    outputs = plugin.get_output_data_types(types, [len(shape) for _, shape in tensors])

    def is_open(place: int, axis: int) -> bool:
        return axis in open_axes and place not in (1, 2)

    inputs = [
        [Size(size, not is_open(place, axis)) for axis, size in enumerate(shape)]
        for place, (_, shape) in enumerate(tensors)
    ]
    builder = Builder(trt)
    (shape,) = plugin.get_output_shapes(inputs, [], builder)
    described = []
    for kind, sizes in zip([*types, *outputs], [*inputs, shape], strict=True):
        tensor = trt.DynamicPluginTensorDesc()
        one = trt.PluginTensorDesc()
        one.dims = trt.Dims([size.value if size.constant else -1 for size in sizes])
        one.type, one.format = kind, trt.TensorFormat.LINEAR
        tensor.desc = one
        described.append(tensor)
    supported = plugin.get_supported_format_combinations(described, len(tensors))
    plugin.configure_plugin(described[:-1], described[-1:])
    assert plugin.get_valid_tactics() == []
    plugin.set_tactic(0)
    launch, extra = SimpleNamespace(), Extra()
    plugin.get_launch_params(inputs, described, len(tensors), launch, extra, builder)
    one_each = [tensor.desc for tensor in described]
    kernel, ptx = plugin.get_kernel(one_each[:-1], one_each[-1:])
    formats = [(each.type, each.format) for each in supported]
    return Planned(outputs, [size.value for size in shape], formats, kernel, ptx.decode(), launch, list(extra))
