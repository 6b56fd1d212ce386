"""The native half; addresses in, results written where they point to."""

from collections.abc import Callable, Sequence
from typing import Any

__version__: str
DTYPES: list[str]

# Address, dtype code (position in DTYPES), shape.
_Operand = tuple[int, int, tuple[int, ...]]

class Unavailable(RuntimeError): ...

def cpu_forward(
    levels: list[int] | tuple[int, ...],
    threads: int,
    value: _Operand,
    locations: _Operand,
    weights: _Operand,
    output: int,
) -> None: ...
def cpu_backward(
    levels: list[int] | tuple[int, ...],
    threads: int,
    value: _Operand,
    locations: _Operand,
    weights: _Operand,
    grad_output: int,
    gradients: tuple[int, int, int],
) -> None: ...

_Rule = tuple[bool, float, bool, bool]
# Which gradients a call will be asked for, and whether with the same bits in every run.
_Expected = tuple[tuple[bool, ...], bool]
_SourceStrides = tuple[tuple[int, int, int], tuple[int, int], tuple[int, int]]

def cpu_forward_from_offsets(
    levels: list[int] | tuple[int, ...],
    place: tuple[int, _Rule],
    inputs: tuple[_Operand, _Operand, _Operand, _Operand, _SourceStrides],
    output: int,
) -> None: ...
def cpu_backward_from_offsets(
    levels: list[int] | tuple[int, ...],
    place: tuple[int, _Rule],
    inputs: tuple[_Operand, _Operand, _Operand, _Operand, _SourceStrides],
    grad_output: int,
    gradients: tuple[int, int, int, int],
) -> None: ...
def cuda_forward_from_offsets(
    levels: list[int] | tuple[int, ...],
    place: tuple[int, int, tuple[int, int, int]],
    rule: _Rule,
    inputs: tuple[_Operand, _Operand, _Operand, _Operand, _SourceStrides],
    output: int,
) -> None: ...
def cuda_forward(
    levels: list[int] | tuple[int, ...],
    device: int,
    stream: int,
    strides: tuple[int, int, int],
    value: _Operand,
    locations: _Operand,
    weights: _Operand,
    output: int,
) -> None: ...

# Device, wanted gradients (1 value, 2 locations or offsets, 4 weights or logits, 8 references), deterministic, strides
# of the value's images, heads and pixels, strides of grad_output's images, queries and channels.
_Request = tuple[int, int, bool, tuple[int, int, int], tuple[int, int, int]]

def cuda_backward_from_offsets(
    levels: list[int] | tuple[int, ...],
    request: _Request,
    stream: int,
    rule: _Rule,
    inputs: tuple[_Operand, _Operand, _Operand, _Operand, _SourceStrides],
    addresses: tuple[int, tuple[int, int, int, int]],
    allocate: Callable[[int], int],
) -> None: ...
def cuda_backward(
    levels: list[int] | tuple[int, ...],
    request: _Request,
    stream: int,
    value: _Operand,
    locations: _Operand,
    weights: _Operand,
    addresses: tuple[int, int, int, int],
    allocate: Callable[[int], int],
) -> None: ...

# PyTorch's own objects: its annotations differ from version to version, so none of them is named here.
def register_kernels() -> list[tuple[str, str]]: ...
def schemas() -> list[str]: ...
def refusal(message: str) -> Exception | None: ...
def use_torch(
    tensor: type,
    watchers: list[Any],
    threads: Any,
    byte: Any,
    quick: tuple[Any, Any, Any] | None,
    dtypes: list[Any],
) -> bool: ...
def end_compiling_ahead() -> None: ...
def torch_forward(value: Any, locations: Any, weights: Any, levels: Any, expected: _Expected | None = None) -> Any: ...
def torch_backward(
    grad_output: Any,
    value: Any,
    locations: Any,
    weights: Any,
    levels: list[int],
    wanted: tuple[bool, bool, bool],
    deterministic: bool,
) -> Any: ...
def torch_forward_from_offsets(tensors: Any, levels: Any, rule: _Rule, expected: _Expected | None = None) -> Any: ...
def torch_backward_from_offsets(
    grad_output: Any,
    tensors: Any,
    levels: list[int],
    rule: _Rule,
    wanted: list[bool],
    deterministic: bool,
) -> Any: ...
def onnx_inspect(model: bytes) -> str: ...
def onnx_rewrite(model: bytes, to: str) -> tuple[bytes | None, str]: ...
def onnx_probes(model: bytes) -> list[tuple[bytes, str]]: ...
def onnx_write(path: str, model: bytes) -> None: ...
def command_line(words: Sequence[str]) -> int: ...
def search_packages(folders: Sequence[str]) -> None: ...
def variants_json() -> str: ...
def device_info_json() -> str: ...
def workloads_json() -> str: ...
def bench_json(
    workload: str,
    device: str | None,
    dtype: str,
    direction: str,
    variant: str | None,
    seconds: float,
    threads: int | None,
    batch: int | None,
) -> str: ...

# Heads, channels, points of every level, references of encoder and decoder in JSON.
_Shape = tuple[int, int, Sequence[int], Sequence[str], Sequence[str]]

def warm_up_json(
    shapes: list[_Shape],
    dtypes: list[str],
    modes: list[str],
    place: tuple[int, str | None],
    threads: int | None,
    say: Callable[[int, int], None],
) -> str: ...
