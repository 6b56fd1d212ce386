"""`python -m msdeform.onnx check MODEL.onnx`."""

from __future__ import annotations

import sys

from ._check import main

if __name__ == "__main__":
    if sys.argv[1:2] != ["check"]:
        print("usage: python -m msdeform.onnx check MODEL.onnx [--runtime NAME] [--json]", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[2:]))
