"""The native half; addresses in, results written where they point to."""

from collections.abc import Sequence

__version__: str
DTYPES: list[str]

# Address, dtype code (position in DTYPES), shape.
_Operand = tuple[int, int, tuple[int, ...]]

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
def check_call(
    levels: list[int] | tuple[int, ...], value: _Operand, locations: _Operand, weights: _Operand
) -> None: ...
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
