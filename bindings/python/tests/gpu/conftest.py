"""Everything here needs a GPU; elsewhere it is skipped, and counted as such."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    reason = pytest.mark.skip(reason="needs a GPU")
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(reason)
