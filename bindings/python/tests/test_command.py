"""The command that the wheel installs, as a user calls it: in an environment that is not activated."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import msdeform
import pytest

COMMAND = Path(sysconfig.get_path("scripts")) / ("msdeform.exe" if os.name == "nt" else "msdeform")

pytestmark = pytest.mark.skipif(not COMMAND.is_file(), reason="the package is used without being installed")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env=environment, check=False)


def test_the_command_is_of_the_version_of_the_package() -> None:
    finished = run("--version")
    build = msdeform.device_info()["build"]
    revision = build["commit"][:9] + ("-dirty" if build["dirty"] else "")
    assert (finished.returncode, finished.stdout) == (0, f"msdeform {msdeform.__version__} ({revision})\n")


def test_it_computes_and_verifies() -> None:
    finished = run("verify", "--device", "cpu", "--workload", "edge_one_pixel", "--dtype", "f32")
    assert finished.returncode == 0, finished.stderr
    assert "fwd_cpu_scalar" in finished.stdout


def test_it_ends_with_the_codes_that_scripts_trust() -> None:
    unknown = run("verify", "--workload", "nothing-of-this-name")
    assert unknown.returncode == 2 and "nothing-of-this-name" in unknown.stderr
    assert run("no-such-command").returncode == 2
