"""Random problems on a GPU."""

from __future__ import annotations

import random_problems


def test_random_problems_on_a_gpu() -> None:
    random_problems.run_all("cuda")
