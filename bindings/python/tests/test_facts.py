"""What the package says about itself and the machine: plain data."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msdeform
import pytest


def test_variants_are_those_of_the_registry_in_both_directions() -> None:
    rows = msdeform.variants()
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids)
    assert {"fwd_cpu_scalar", "bwd_cpu_scalar", "fwd_general"} <= set(ids)
    assert not {"fwd_original", "fwd_simple"} & set(ids), "rungs are the laboratory's"
    for row in rows:
        assert row["device"] in ("cpu", "cuda") and row["direction"] in ("forward", "backward")
        assert row["idea"] and row["why"] and row["dtypes"]
    json.dumps(rows)


def test_device_info_says_what_is_there_and_why_something_is_not() -> None:
    info = msdeform.device_info()
    build = info["build"]
    assert build["version"] and build["dirty"] in (True, False)
    assert re.fullmatch("[0-9a-f]{40}|unknown", build["commit"])
    assert info["cpu"]["cores"] >= 1 and info["cpu"]["instructions"]
    cuda = info["cuda"]
    assert (cuda["driver"] is None) == bool(cuda["missing"])
    assert (cuda["nvrtc"]["version"] is None) == bool(cuda["nvrtc"]["missing"])
    assert isinstance(cuda["gpus"], list)


def test_a_kernel_pack_that_cannot_be_read_says_so_and_none_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MSDEFORM_KERNEL_PACK", "off")
    assert msdeform.device_info()["cuda"]["kernel_pack"] == {"path": None, "summary": None, "ignored": None}
    pack = tmp_path / "kernels.pack"
    pack.write_bytes(b"not a pack")
    monkeypatch.setenv("MSDEFORM_KERNEL_PACK", str(pack))
    found = msdeform.device_info()["cuda"]["kernel_pack"]
    assert found["path"] == str(pack) and found["summary"] is None
    assert "no kernel pack" in found["ignored"]


def test_bench_verifies_and_times_on_the_processor() -> None:
    result = msdeform.bench("edge_one_point", device="cpu", seconds=0.01, threads=1)
    assert result["passed"] and result["rel_l2"] <= 1e-5
    assert result["median_us"] > 0 and len(result["samples_us"]) >= 5
    backward = msdeform.bench("edge_one_point", device="cpu", seconds=0.01, direction="backward", dtype="bf16")
    assert backward["passed"] and backward["variant"].startswith("bwd_cpu")


def test_workloads_come_with_a_reason() -> None:
    rows = msdeform.workloads()
    assert "ddetr_enc" in [row["name"] for row in rows]
    assert all(row["why"] for row in rows)


@pytest.mark.parametrize(
    "change",
    [{"workload": "nothing"}, {"dtype": "f8"}, {"device": "tpu"}, {"variant": "x"}, {"seconds": -1.0}],
)
def test_bench_refuses_what_it_does_not_know(change: dict[str, object]) -> None:
    arguments = {"workload": "edge_one_point", "device": "cpu", "seconds": 0.0, **change}
    with pytest.raises(ValueError):
        msdeform.bench(**arguments)  # type: ignore[arg-type]


def test_version_and_names() -> None:
    assert msdeform.__version__.count(".") == 2
    assert "ms_deform_attn" in dir(msdeform)
    with pytest.raises(AttributeError, match="no attribute 'attention'"):
        msdeform.attention  # noqa: B018


def test_what_documentation_names_can_be_named() -> None:
    assert {"Shape", "Unavailable"} <= set(dir(msdeform))
    assert msdeform.Shape(8, 32, [4]) == (8, 32, [4], (), ())
    assert issubclass(msdeform.Unavailable, RuntimeError) and msdeform.Unavailable.__module__ == "msdeform"
    if not msdeform.device_info()["cuda"].get("gpus"):
        with pytest.raises(msdeform.Unavailable):
            msdeform.warm_up(msdeform.Shape(8, 32, [4]), ["f32"])
