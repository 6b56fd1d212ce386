"""The command `msdeform`, in the interpreter that it was installed for: it finds the same NVRTC as the package does."""

from __future__ import annotations

import os
import signal
import sys

from . import _native


def main() -> int:
    """Run the command line of this process and return its exit code."""
    # Python would only note an interrupt, and see to it when the command is done.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # `msdeform onnx check` starts Python, which must be this one with its packages.
    os.environ.setdefault("MSDEFORM_PYTHON", sys.executable)
    return _native.command_line(["msdeform", *sys.argv[1:]])
