"""`python -m msdeform` where there is a GPU."""

from __future__ import annotations

import json

import pytest
from msdeform.__main__ import main


def test_the_gpu_is_checked_in_every_format_and_timed_beside_grid_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--device", "cuda:0"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = [check for check in report["checks"] if check["device"] == "cuda:0"]
    assert len(found) == 12 and all(check["passed"] for check in found)
    assert report["times"] and all(row["training_ms"] > 0 for row in report["times"])
