"""The native half; addresses in, results written where they point to."""

from collections.abc import Callable, Sequence
from typing import Any

__version__: str
DTYPES: list[str]

# Address, dtype code (position in DTYPES), shape, strides in elements; no strides where nothing reads them.
_Operand = tuple[int, int, tuple[int, ...], tuple[int, ...]]

class Unavailable(RuntimeError): ...

# Anchors, scale, softmax, nearest.
_Rule = tuple[bool, float, bool, bool]
# The tensors of an operator in its order, and how samples follow from offsets, if they do.
_Inputs = tuple[Sequence[_Operand], _Rule | None]
# Threads of the CPU, or number and stream of a GPU.
_Place = tuple[int, int | None]
# Which gradients a call will be asked for, and whether with the same bits in every run.
_Expected = tuple[tuple[bool, ...], bool]
# Address and strides of grad_output, which gradients are wanted, their addresses, whether they must be reproducible.
_Wanted = tuple[int, tuple[int, ...], list[bool], list[int], bool]

def forward(levels: list[int] | tuple[int, ...], place: _Place, inputs: _Inputs, output: int) -> None: ...
def backward(
    levels: list[int] | tuple[int, ...],
    place: _Place,
    inputs: _Inputs,
    wanted: _Wanted,
    allocate: Callable[[int], int] | None,
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
def use_recorder(
    plain: tuple[Any, Any], from_offsets: tuple[Any, Any], is_grad_enabled: Any, is_deterministic: Any
) -> None: ...
def torch_attend(
    value: Any, locations: Any, weights: Any, shapes: Any, deterministic: bool, is_recorded: bool
) -> Any: ...
def torch_attend_from_offsets(
    value: Any,
    references: Any,
    offsets: Any,
    logits: Any,
    shapes: Any,
    rule: Any,
    deterministic: bool,
    is_recorded: bool,
) -> Any: ...
def recorded_forward(ctx: Any, *arguments: Any) -> Any: ...
def recorded_backward(ctx: Any, grad_output: Any) -> Any: ...
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
