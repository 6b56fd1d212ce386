"""Lets the tests import the scripts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
