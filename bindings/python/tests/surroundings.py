"""What tests must know about each other and the machine. Not in `conftest.py`: the tests of GPUs have one as well,
and a module of that name is whichever of the two was loaded last."""

from __future__ import annotations

import importlib.util

HAS_TORCH = importlib.util.find_spec("torch") is not None

# Modules that tests make up have names that begin so.
MADE_UP = ("a_framework_of_these_tests", "transformers.models.of_these_tests")
