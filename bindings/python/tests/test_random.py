"""Random problems on the CPU."""

from __future__ import annotations

import random_problems


def test_random_problems_on_the_processor() -> None:
    random_problems.run_all("cpu")
