"""The operators without Python: native kernels in PyTorch's dispatcher, and a package of AOTInductor in C++."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msdeform.aoti
import msdeform.operator
import pytest
import torch
from msdeform import _native, _schema
from oracle import make_case

PACKAGE = Path(__file__).resolve().parents[1]
EXAMPLE = PACKAGE / "examples" / "aoti"
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
LEVELS = [9, 12, 0, 3, 5, 6, 108, 3, 1, 3, 138, 3]

native = pytest.mark.skipif(TORCH < (2, 13), reason="torch 2.13 has all of the C interface that the kernels use")


def overloads() -> list[Any]:
    packets = (_schema.FORWARD, _schema.BACKWARD, _schema.FROM_OFFSETS, _schema.FROM_OFFSETS_BACKWARD)
    return [getattr(packet, name) for packet in packets for name in packet.overloads()]


def test_definitions_of_the_native_library_are_those_of_the_package() -> None:
    parsed = {str(torch._C.parse_schema(f"msdeform::{schema}")) for schema in _native.schemas()}
    assert parsed == {str(overload._schema) for overload in overloads()}
    assert len(parsed) == len(_native.schemas()) == 6


@native
def test_kernels_of_the_processor_are_native() -> None:
    for overload in overloads():
        name = overload._schema.name
        if overload._schema.overload_name:
            name += f".{overload._schema.overload_name}"
        kernels = torch._C._dispatch_dump(name).splitlines()
        (kernel,) = [line for line in kernels if line.startswith("CPU:")]
        assert "msdeform-torch" in kernel, kernel


@native
def test_a_refusal_of_a_native_kernel_keeps_its_words_everywhere_and_its_type_where_python_is_between() -> None:
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
    expected = _kernels.forward_cpu(*tensors, LEVELS)
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
                assert all(map(torch.equal, found, _kernels.backward_cpu(gradient, *tensors, LEVELS, wanted)))


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
        "assert 'msdeform-torch' not in torch._C._dispatch_dump('msdeform::ms_deform_attn')\n"
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


PAGE = PACKAGE / "docs" / "aoti.md"


def commands_of_the_page() -> list[str]:
    """What a reader types, a line for each command."""
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    commands: list[str] = block.replace("\\\n", " ").splitlines()
    assert [command.split()[0].split("=")[0] for command in commands] == ["python", "torch", "g++", "./decoder"]
    return commands


def with_this_python(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which `python` is the one that runs the tests."""
    return {**environment, "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])}


def test_the_code_of_the_page_is_that_of_the_example() -> None:
    (block,) = re.findall(r"```cpp\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    loads, finds, calls = block.replace('"libmsdeform_torch.so"', "library").splitlines()
    example = [line.strip() for line in (EXAMPLE / "main.cpp").read_text().splitlines()]
    assert loads in example and finds in example
    assert calls.startswith("const char* refusal = registration();")


@native
def test_a_package_of_aotinductor_runs_in_a_program_without_python(tmp_path: Path, library: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    # Compiled for one run: nothing here is worth optimising.
    environment = {
        **os.environ,
        "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0",
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "CXX": compiler,
    }
    export, root, build, run_it = commands_of_the_page()
    for name in ("export.py", "main.cpp"):
        shutil.copy(EXAMPLE / name, tmp_path)
    typed = {"cwd": tmp_path, "text": True}
    # Both at once.
    building = subprocess.Popen(
        ["sh", "-ec", f"{root}\n{build.replace('g++', compiler, 1)}"],
        env=with_this_python(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **typed,
    )
    exported = subprocess.run(
        ["sh", "-ec", export], env=with_this_python(environment), capture_output=True, timeout=600, **typed
    )
    said, _ = building.communicate(timeout=600)
    assert building.returncode == 0, said
    assert exported.returncode == 0, exported.stdout + exported.stderr
    assert "ms_deform_attn.tensor_levels" in exported.stdout and "from_offsets.default" in exported.stdout
    bare = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "LD_"))}
    run = subprocess.run(["sh", "-ec", run_it], env=with_this_python(bare), capture_output=True, timeout=300, **typed)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "without Python" in run.stdout and "layer: largest difference" in run.stdout, run.stdout
    assert "refused: `value` has 750 pixels, but the levels of `spatial_shapes` [(40, 60), (20, 30)]" in run.stdout
