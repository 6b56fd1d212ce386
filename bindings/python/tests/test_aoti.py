"""The operators without Python: native kernels in PyTorch's dispatcher, and a package of AOTInductor in C++."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msdeform.aoti
import msdeform.operator
import pytest
import torch
from aoti_example import EXAMPLE, PAGE, run_example
from msdeform import _native
from msdeform._operators import OPERATORS, PLAIN
from oracle import make_case
from torch.utils._python_dispatch import TorchDispatchMode

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
LEVELS = [9, 12, 0, 3, 5, 6, 108, 3, 1, 3, 138, 3]

native = pytest.mark.skipif(TORCH < (2, 13), reason="torch 2.13 has all of the C interface that the kernels use")


def overloads() -> list[Any]:
    forms = [form for operator in OPERATORS for form in operator.forms]
    return [overload for form in forms for overload in (form.forward, form.backward)]


def test_definitions_of_the_native_library_are_those_of_the_package() -> None:
    parsed = {str(torch._C.parse_schema(f"msdeform::{schema}")) for schema in _native.schemas()}
    assert parsed == {str(overload._schema) for overload in overloads()}
    assert len(parsed) == len(_native.schemas()) == 6


# PyTorch for CUDA has GPU kernels too, even on a machine without a GPU.
KEYS = ("CPU", "CUDA") if torch.version.cuda else ("CPU",)


@pytest.mark.skipif(TORCH < (2, 10), reason="torch 2.10 has the C interface that the kernels use")
@pytest.mark.parametrize("key", KEYS)
def test_kernels_are_native(key: str) -> None:
    for overload in overloads():
        name = overload._schema.name
        if overload._schema.overload_name:
            name += f".{overload._schema.overload_name}"
        kernels = torch._C._dispatch_dump(name).splitlines()
        (kernel,) = [line for line in kernels if line.startswith(f"{key}:")]
        # Arguments that may be missing are handed over from version 2.13 on.
        has_optional = any(argument.type.kind() == "OptionalType" for argument in overload._schema.arguments)
        assert ("msdeform-torch" in kernel) == (TORCH >= (2, 13) or not has_optional), kernel


class Seen(TorchDispatchMode):
    """The arguments of the gradient, as its kernel gets them."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "backward" in func._schema.name:
            self.arguments.append(args)
        return func(*args, **(kwargs or {}))


def test_a_gradient_is_told_whether_it_must_have_the_same_bits_in_every_run() -> None:
    case = make_case()
    leaves = [tensor.clone().requires_grad_() for tensor in case.tensors]
    references = torch.rand(*case.locations.shape[:2], len(case.shapes), 2)

    def gradients() -> tuple[tuple[Any, ...], ...]:
        with Seen() as seen:
            msdeform.ms_deform_attn(leaves[0], case.shapes, None, *leaves[1:]).sum().backward()
            msdeform.ms_deform_attn_from_offsets(leaves[0], case.shapes, references, *leaves[1:]).sum().backward()
            torch.ops.msdeform.ms_deform_attn_backward(
                torch.ones(2, 11, 32), *case.tensors, torch.tensor(case.shapes), None, None, [True] * 3
            )
        return tuple(seen.arguments)

    before = gradients()
    torch.use_deterministic_algorithms(True)
    try:
        after = gradients()
    finally:
        torch.use_deterministic_algorithms(False)
    # A default is left out.
    assert len(before) == len(after) >= 3
    assert not any(arguments[-1] is True for arguments in before) and all(arguments[-1] is True for arguments in after)


@native
def test_a_native_refusal_keeps_its_text_and_in_python_its_type() -> None:
    case = make_case()
    attend = torch.ops.msdeform.ms_deform_attn
    bad: dict[str, tuple[tuple[Any, ...], type[Exception]]] = {
        "`levels` has 11 numbers": ((*case.tensors, LEVELS[1:]), ValueError),
        "`value` is torch.int64; expected torch.float32, float16": (
            (case.value.long(), case.locations, case.weights, LEVELS),
            TypeError,
        ),
        "`value` has shape [141, 4, 8], expected": ((case.value[0], case.locations, case.weights, LEVELS), ValueError),
        "`spatial_shapes` is torch.float32; expected integers": (
            (*case.tensors, torch.ones(3, 2), None, None),
            TypeError,
        ),
        "`points` has 2 entries for 3 levels": (
            (*case.tensors, torch.tensor(case.shapes), None, [3, 3]),
            ValueError,
        ),
        "`value` has 141 pixels, but the levels of `spatial_shapes` [(18, 24), (10, 12), (2, 6)] have 564": (
            (*case.tensors, 2 * torch.tensor(case.shapes), None, None),
            ValueError,
        ),
    }
    for words, (arguments, kind) in bad.items():
        with pytest.raises(kind) as caught:
            attend(*arguments)
        assert words in str(caught.value)
        # Nothing but the kernel is called in this mode.
        with torch.inference_mode(), pytest.raises(RuntimeError) as bare:
            attend(*(item.clone() if isinstance(item, torch.Tensor) else item for item in arguments))
        assert words in str(bare.value)
    assert not attend(*case.tensors, LEVELS).isnan().any()


@native
def test_an_error_of_somebody_else_is_not_taken_for_a_refusal() -> None:
    case = make_case()
    with torch.inference_mode(), pytest.raises(RuntimeError, match="`levels` has 11 numbers"):
        torch.ops.msdeform.ms_deform_attn(*(tensor.clone() for tensor in case.tensors), LEVELS[1:])
    assert _native.refusal("out of memory") is None
    assert _native.refusal("`levels` has 11 numbers") is None, "asked about twice"


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers with a gap after each."""
    return torch.stack([tensor, torch.full_like(tensor, torch.nan)], -1)[..., 0]


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_native_kernels_compute_what_those_in_python_do(dtype: torch.dtype) -> None:
    from msdeform import _kernels

    tensors = [tensor.to(dtype) for tensor in make_case().tensors]
    shapes = torch.tensor(make_case().shapes)
    forward, backward = torch.ops.msdeform.ms_deform_attn, torch.ops.msdeform.ms_deform_attn_backward
    expected = _kernels.compute_forward(PLAIN, tensors, LEVELS, ())
    gradient = torch.randn_like(expected)
    for given in (tensors, [strided(tensor) for tensor in tensors]):
        assert torch.equal(forward(*given, LEVELS), expected)
        for starts, points in ((None, None), (torch.tensor([0, 108, 138]), [3, 3, 3])):
            assert torch.equal(forward(*given, shapes.to(torch.int32), starts, points), expected)
        for wanted in ([True, True, True], [False, True, False]):
            for found in (
                backward(gradient, *given, LEVELS, wanted),
                backward(strided(gradient), *given, shapes, None, None, wanted),
            ):
                exact = _kernels.compute_backward(PLAIN, gradient, tensors, LEVELS, (), wanted, True)
                assert all(map(torch.equal, found, exact))


# Prints how many threads of this package a call has started. It does not wait for those that it had no need of, and
# a thread names itself: on a busy machine names are late. So would one too many be.
THREADS = """
import os, time, torch, msdeform.operator

def workers():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum(name.startswith("msdeform-") for name in names)

value = torch.randn(1, 600, 8, 32)
locations, weights = torch.rand(1, 600, 8, 1, 4, 2), torch.rand(1, 600, 8, 1, 4)
torch.set_num_threads(3)
torch.ops.msdeform.ms_deform_attn(value, locations, weights, [20, 30, 0, 4])
until = time.monotonic() + 20
while workers() < 3 and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.2)
print(workers())
"""


@native
def test_native_kernels_take_the_threads_that_pytorch_has() -> None:
    finished = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=300)
    assert finished.stdout.strip() == "3", finished.stdout + finished.stderr


def test_without_the_interface_the_kernels_are_those_in_python() -> None:
    program = (
        "from msdeform import _native\n"
        "_native.register_kernels = lambda: []\n"
        "import torch, msdeform.operator\n"
        "kernels = torch._C._dispatch_dump('msdeform::ms_deform_attn')\n"
        "assert 'msdeform-torch' not in kernels and 'CPU:' in kernels and 'CUDA:' in kernels\n"
        "shapes = [(2, 2)]\n"
        "value, locations, weights = torch.randn(1, 4, 1, 8), torch.rand(1, 3, 1, 1, 2, 2), torch.rand(1, 3, 1, 1, 2)\n"
        "found = torch.ops.msdeform.ms_deform_attn(value, locations, weights, [2, 2, 0, 2])\n"
        "assert torch.equal(found, msdeform.ms_deform_attn(value, shapes, None, locations, weights))\n"
        "read = torch.ops.msdeform.ms_deform_attn(value, locations, weights, torch.tensor(shapes), None, None)\n"
        "assert torch.equal(found, read)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.fixture(scope="module")
def library() -> Path:
    try:
        return msdeform.aoti.library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_a_process_without_pytorch_is_told_so(library: Path) -> None:
    program = (
        "import ctypes, sys\n"
        "register = ctypes.CDLL(sys.argv[1]).msdeform_torch_register\n"
        "register.restype = ctypes.c_char_p\n"
        "print(register().decode())\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, str(library)], capture_output=True, text=True, timeout=300
    )
    assert finished.stdout.strip() == "the process has loaded no libtorch", finished.stdout + finished.stderr


@native
def test_a_process_that_has_the_operators_from_python_keeps_them(library: Path) -> None:
    register = ctypes.CDLL(str(library)).msdeform_torch_register
    register.restype = ctypes.c_char_p
    refusals = {register(), register()}
    assert len(refusals) == 1 and b"ms_deform_attn" in (refusals.pop() or b"")
    case = make_case()
    assert not torch.ops.msdeform.ms_deform_attn(*case.tensors, LEVELS).isnan().any()


def test_the_code_of_the_page_is_that_of_the_example() -> None:
    (block,) = re.findall(r"```cpp\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    loads, finds, calls = block.replace('"_native.abi3.so"', "library").splitlines()
    example = [line.strip() for line in (EXAMPLE / "main.cpp").read_text().splitlines()]
    assert loads in example and finds in example
    assert calls.startswith("const char* refusal = registration();")


@native
@pytest.mark.usefixtures("library")
def test_a_package_of_aotinductor_runs_in_a_program_without_python(tmp_path: Path) -> None:
    exported, said = run_example(tmp_path, "cpu")
    assert "ms_deform_attn.tensor_levels" in exported and "from_offsets.default" in exported
    assert "refused: `value` has 750 pixels, but the levels of `spatial_shapes` [(40, 60), (20, 30)]" in said
