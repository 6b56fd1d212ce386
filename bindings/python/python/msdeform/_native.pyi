"""The native half: takes addresses and writes results there."""

from collections.abc import Callable, Sequence
from typing import Any

__version__: str
DTYPES: list[str]

class Unavailable(RuntimeError): ...

# Address, dtype code (position in DTYPES), shape, strides in elements; no strides of contiguous memory.
_Operand = tuple[int, int, tuple[int, ...], tuple[int, ...]]
# The options of an operator in the order of its schema.
_Options = tuple[Any, ...] | None
# The tensors of an operator in its order, and its options.
_Inputs = tuple[Sequence[_Operand], _Options]
# Threads of the CPU, or number and stream of a GPU.
_Place = tuple[int, int | None]

def forward(levels: list[int] | tuple[int, ...], place: _Place, inputs: _Inputs, output: int) -> None: ...

# PyTorch's own objects: its annotations differ from version to version, so none of them is named here.
def register_kernels() -> list[tuple[str, str]]: ...
def schemas() -> list[str]: ...
def refusal(message: str) -> Exception | None: ...
def use_torch(torch: Any) -> None: ...
def end_compiling_ahead() -> None: ...

class Levels:
    numbers: list[int]

def torch_forward(
    tensors: Any, levels: Any, are_shapes: bool, options: _Options, deterministic: bool, is_recorded: bool
) -> Any: ...
def torch_backward(
    grad_output: Any, tensors: Any, levels: Any, options: _Options, wanted: tuple[bool, ...], deterministic: bool
) -> Any: ...
def kernel_forward(tensors: Any, levels: list[int], options: _Options) -> Any: ...
def kernel_backward(
    grad_output: Any, tensors: Any, levels: list[int], options: _Options, wanted: tuple[bool, ...], deterministic: bool
) -> Any: ...
def onnx_inspect(model: bytes) -> str: ...
def onnx_rewrite(model: bytes, to: str | None, runtime: str | None, rank: int | None) -> tuple[bytes | None, str]: ...
def onnx_probes(model: bytes) -> list[tuple[bytes, str]]: ...
def onnx_trials(model: bytes, forms: list[str]) -> tuple[list[tuple[bytes, str]], str]: ...
def onnx_write(path: str, model: bytes) -> None: ...
def command_line(words: Sequence[str]) -> int: ...
def search_packages(folders: Sequence[str]) -> None: ...
def variants() -> list[dict[str, Any]]: ...
def device_info() -> dict[str, Any]: ...
def workloads() -> list[dict[str, Any]]: ...
def bench(
    workload: str = "ddetr_dec",
    *,
    device: str | None = None,
    dtype: str = "f32",
    direction: str = "forward",
    variant: str | None = None,
    seconds: float = 1.0,
    threads: int | None = None,
    batch: int | None = None,
) -> dict[str, Any]: ...

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

# Name, PTX, threads, rows and shared bytes of a block, and the names of its integers.
_TensorRtKernel = tuple[str, str, int, int, int, list[str]]

def tensorrt_kernel(
    inputs: tuple[Sequence[tuple[int, Sequence[int]]], _Options],
    levels: tuple[int, Sequence[int] | None],
    integer_bytes: int,
) -> _TensorRtKernel: ...
