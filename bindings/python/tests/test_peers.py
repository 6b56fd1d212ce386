"""`benches/peers.py`: what it writes, what it computes, and that a peer which hangs costs no other peer a row."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benches"))
peer_calls, peer_rows, peers = map(importlib.import_module, ("peer_calls", "peer_rows", "peers"))

ROOT = Path(__file__).resolve().parents[3]
needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="reading workloads needs Python 3.11")

OLD = """\
# a comment of before
peer,workload,locations,dtype,forward_us,backward_us,forward_graph_us,backward_graph_us,forward_runs,backward_runs,\
error_output,error_value,error_locations,error_locations_away,error_weights
mmcv,ddetr_enc,local,f32,638.19,2259.57,,,20,20,3.004e-06,3.010e-06,2.731e-06,2.746e-06,nan
mmcv,ddetr_dec,local,f32,38.40,74.38,15.60,68.10,20,20,2.797e-06,2.784e-06,2.842e-06,2.843e-06,2.876e-06
"""
TABLE = """\
# measured elsewhere
# in two runs
peer,workload,dtype,fwd_us,bwd_us,fwd_graph_us,bwd_graph_us,bwd_peak_mib,e_fwd,e_gv,e_gloc_away,e_gattn,run
msdeform,ddetr_enc,fp32,158.8,579.5,,,557,3e-06,3e-06,3e-06,3e-06,a
deformops-triton,ddetr_enc,fp32,439.4,1007.5,,,110,3e-06,3e-06,3e-06,3e-06,a
msdeform,dino_dec,fp16,37.4,154.6,10.8,,60,3e-06,3e-06,3e-06,3e-06,a
msdeform,seed_6x8_uniform,bf16,1,2,,,60,3e-06,3e-06,3e-06,3e-06,a
msdeform,ddetr_enc,fp32,159.4,581.4,,,557,3e-06,3e-06,3e-06,3e-06,b
msdeform,dino_dec,fp16,29.6,169.2,10.6,50.2,61,3e-06,3e-06,3e-06,3e-06,b
"""


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")][1:]


def imported(folder: Path, old: str | None = OLD, table: str = TABLE) -> Path:
    """The file after an import."""
    record, source = folder / "peers.csv", folder / "table.csv"
    source.write_text(table)
    if old is not None:
        record.write_text(old)
    assert peers.main(["--import", str(source), "--record", str(record)]) == 0
    return record


def test_an_import_adds_rows_and_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    record = imported(tmp_path)
    text = record.read_text()
    assert rows_of(text) == [
        f"{rows_of(OLD)[0]},,1",
        "msdeform,ddetr_enc,local,f32,158.8,579.5,,,,,3e-06,3e-06,,3e-06,3e-06,557,2",
        "deformops-triton,ddetr_enc,local,f32,439.4,1007.5,,,,,3e-06,3e-06,,3e-06,3e-06,110,2",
        f"{rows_of(OLD)[1]},,1",
        # Of two runs, the one with more numbers.
        "msdeform,dino_dec,local,f16,29.6,169.2,10.6,50.2,,,3e-06,3e-06,,3e-06,3e-06,61,3",
        "msdeform,seed_6x8,uniform,bf16,1,2,,,,,3e-06,3e-06,,3e-06,3e-06,60,2",
    ]
    assert "# run 2: imported from table.csv, run a. measured elsewhere. in two runs\n" in text
    assert "a comment of before" not in text and "do not\n# edit it." in text
    assert imported(tmp_path, old=None).read_text() == text, "importing again changes nothing"


def test_a_table_or_a_file_in_another_format_is_refused(tmp_path: Path) -> None:
    for broken in (TABLE.replace("fp16", "fp8"), TABLE.replace("bwd_us", "b"), TABLE.replace("37.4", "fast")):
        with pytest.raises(ValueError, match=r"fp8|bwd_us|fast"):
            imported(tmp_path, table=broken)
    with pytest.raises(ValueError, match="columns"):
        imported(tmp_path, old="peer,time\nmmcv,3\n")
    with pytest.raises(ValueError, match="cells"):
        imported(tmp_path, old=f"{OLD}mmcv,x\n")
    with pytest.raises(SystemExit):
        peers.main(["--import", "somewhere.csv"])


def test_the_record_in_the_tree_is_what_the_command_writes() -> None:
    for path in ROOT.glob("records/*/peers.csv"):
        text = peer_rows.sealed(peer_rows.PeerFile.read(path).text())
        assert text == path.read_text(), "edited by hand; run benches/peers.py"


def row(peer: str, workload: str, **cells: str) -> dict[str, str]:
    key = {"peer": peer, "workload": workload, "locations": "local", "dtype": "f32"}
    return {**dict.fromkeys(peer_rows.COLUMNS, ""), **key, "forward_us": "1.00", "backward_us": "2.00", **cells}


def test_the_rows_of_a_run_replace_those_of_the_same_peer_and_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "built_from", lambda: "c1")
    record = imported(tmp_path)
    for _ in range(2):
        keep = peers.recorder(record, f"peers.py --record {record}")
        keep([row("msdeform", "ddetr_enc", backward_memory_mib="5.0")], "v1")
        keep([row("msdeform", "bevformer_tsa")], "v1")
    text = record.read_text()
    assert "msdeform,ddetr_enc,local,f32,1.00,2.00,,,,,,,,,,5.0,4" in rows_of(text)
    assert len(rows_of(text)) == 7 and rows_of(text)[-1].startswith("msdeform,bevformer_tsa")
    # The first of both runs has no row left, or began in the same second.
    assert len(re.findall(r"^# run \d+: ", text, re.MULTILINE)) == 4 and ", v1, commit c1, by peers.py\n" in text
    keep = peers.recorder(None, "")
    keep([row("msdeform", "ddetr_enc")], "v1")
    assert record.read_text() == text


def test_numbers_that_are_missing_and_numbers_that_are_none() -> None:
    assert [peer_rows.cell(number, ".3e") for number in (None, math.nan, 0.00012345)] == ["", "nan", "1.234e-04"]


def write_workload(folder: Path, name: str, queries: object = 20, points: object = "uniform") -> None:
    text = (
        f'name = "{name}"\nbatch = 2\nbatch_cpu = 2\nheads = 3\nchannels = 4\nlevels = [[6, 9], [3, 5]]\n'
        f"points = 2\nqueries = {queries}\nreference_points = {points}\n"
    )
    (folder / f"{name}.toml").write_text(text)


@needs_toml
def test_every_workload_of_the_plan_can_be_read() -> None:
    for name in peers.NAMES:
        workload = peer_calls.Workload.load(peers.WORKLOADS, name, "cuda")
        assert workload.batch >= 2 and workload.queries >= 300
        is_decoder = name.endswith("_dec")
        assert (workload.samples < peer_calls.GRAPH_SAMPLES) == is_decoder


@needs_toml
@pytest.mark.parametrize(
    ("queries", "points"), [(20, '"uniform"'), ('"pixels"', '"pixels"'), (20, '"raster"'), (20, "{ raster_width = 5 }")]
)
def test_inputs_follow_the_recipe(queries: object, points: str, tmp_path: Path) -> None:
    write_workload(tmp_path, "w", queries, points)
    workload = peer_calls.Workload.load(tmp_path, "w", "cpu")
    inputs = peer_calls.draw(workload, "local", "f32", "cpu")
    assert inputs.value.shape == (2, 69, 3, 4) and inputs.locations.shape == (2, workload.queries, 3, 2, 2, 2)
    assert torch.allclose(inputs.weights.flatten(3).sum(-1), torch.ones(()))
    assert inputs.grad_output.shape == (2, workload.queries, 12)
    centres = peer_calls._reference_points(workload, torch.Generator(), "cpu")
    assert centres.shape[1:] == (workload.queries, 2) and bool(((centres > 0) & (centres < 1)).all())
    if points != '"uniform"':
        # What is left of a sample without its query and head: a pixel of noise.
        offsets = (inputs.locations.double() - centres[:, :, None, None, None]) * torch.tensor([[[9, 6]], [[5, 3]]])
        angles = torch.arange(3) * (2 * math.pi / 3)
        reach = 0.75 * torch.tensor([1.0, 2.0])
        noise = offsets - torch.stack([angles.cos(), angles.sin()], -1)[:, None, None] * reach[:, None]
        assert float(noise.std()) == pytest.approx(1.0, abs=0.15) and abs(float(noise.mean())) < 0.15
    half = peer_calls.draw(workload, "local", "f16", "cpu")
    assert torch.equal(half.locations, inputs.locations.half()), "the same numbers, rounded"
    anywhere = peer_calls.draw(workload, "uniform", "f32", "cpu").locations
    assert bool(((anywhere >= 0) & (anywhere <= 1)).all())


@needs_toml
def test_errors_are_those_of_each_result(tmp_path: Path) -> None:
    write_workload(tmp_path, "w", points='"uniform"')
    inputs = peer_calls.draw(peer_calls.Workload.load(tmp_path, "w", "cpu"), "local", "f32", "cpu")
    exact = peer_calls.exact_results(inputs)
    import msdeform

    given = [tensor.double().requires_grad_() for tensor in inputs.differentiable]
    output = msdeform.reference.ms_deform_attn(given[0], [[6, 9], [3, 5]], None, *given[1:])
    ours = (output, *torch.autograd.grad(output, given, inputs.grad_output.double()))
    assert all(error < 1e-12 for error in peer_calls.errors_of(ours, exact, inputs).values())
    # A location whose gradient is of the other side of a border counts only among all of them.
    border = ~peer_calls.is_away_from_borders(inputs)
    wrong = [tensor.detach().clone() for tensor in ours]
    wrong[0][0, 0, 0] = math.nan
    wrong[2][border] += 1.0
    errors = peer_calls.errors_of(tuple(wrong), exact, inputs)
    assert math.isnan(errors["error_output"]) and errors["error_locations_away"] < 1e-12
    assert (errors["error_locations"] > 1e-3) == bool(border.any())


@needs_toml
def test_peers_are_measured_next_to_each_other_on_a_cpu(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_workload(tmp_path, "ddetr_dec", points='"uniform"')
    record = tmp_path / "peers.csv"
    given = ["--device", "cpu", "--workloads", str(tmp_path), "--only", "ddetr_dec", "--quick", "--record", str(record)]
    assert peers.main([*given, "--dtypes", "f32", "--peers", "msdeform", "absent", "grid_sample"]) == 0
    ours, theirs = (line.split(",") for line in rows_of(record.read_text()))
    assert ours[:4] == ["msdeform", "ddetr_dec", "local", "f32"] and theirs[0] == "grid_sample"
    for cells in (ours, theirs):
        assert float(cells[4]) > 0 and float(cells[5]) > 0 and cells[8:10] == ["5", "5"]
        assert all(float(error) < 1e-5 for error in cells[10:15]) and cells[6:8] == ["", ""] and cells[15] == ""
    assert "ddetr_dec local f32, absent, errors and memory: KeyError" in capfd.readouterr().out
    assert peers.main([*given, "--dtypes", "f32", "--peers", "absent"]) == 1, "nothing was measured"


class FakeCuda:
    """As much of `torch.cuda` as the clock uses, on the CPU; each name must be there in PyTorch too."""

    def __init__(self) -> None:
        self.slept: list[int] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = time.perf_counter()

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Any) -> float:
            return max(1e-6, (end.at - self.at) * 1e3)

    class Stream:
        def wait_stream(self, _: object) -> None:
            pass

    class CUDAGraph:
        def replay(self) -> None:
            pass

    def _sleep(self, cycles: int) -> None:
        self.slept.append(cycles)

    def graph(self, graph: object, stream: object, capture_error_mode: str) -> Any:
        assert capture_error_mode == "thread_local"
        return contextlib.nullcontext(graph)

    def __getattr__(self, name: str) -> Any:
        assert hasattr(torch.cuda, name), name
        answers = {"memory_allocated": 3 * 2**20, "max_memory_allocated": 10 * 2**20}
        if name == "stream":
            return lambda _: contextlib.nullcontext()
        return lambda *_: answers.get(name)


@needs_toml
def test_the_steps_on_a_gpu_are_those_of_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    for name in ("Event", "Stream", "CUDAGraph", "_sleep", "graph"):
        assert hasattr(torch.cuda, name)
    visible = types.SimpleNamespace(**{name: getattr(torch, name) for name in dir(torch) if not name.startswith("__")})
    visible.cuda = fake
    monkeypatch.setattr(peer_calls, "torch", visible)
    monkeypatch.setattr(peer_calls.GpuClock, "device", "cpu")
    write_workload(tmp_path, "ddetr_dec", points='"uniform"')
    case = peer_rows.Case("ddetr_dec", "local", "f16", ("msdeform", "grid_sample"))
    told: list[dict[str, Any]] = []
    found = list(peer_calls.measure(case, tmp_path, "cpu", 3, peer_calls.GpuClock(), told.append))
    assert [row["peer"] for row in found] == ["msdeform", "grid_sample"]
    for row in found:
        assert row["backward_memory_mib"] == "7.0" and float(row["forward_graph_us"]) >= 0
        assert float(row["backward_graph_us"]) >= 0 and row["forward_runs"] == "3"
    assert not any("failed" in message for message in told) and fake.slept
    steps = [(message["step"], message["peer"]) for message in told]
    assert steps[:3] == [
        ("exact results", None),
        ("errors and memory", "msdeform"),
        ("errors and memory", "grid_sample"),
    ]


def worker(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Replaces the worker by a program of the test's, which is told the cases."""
    file = folder / "worker.py"
    begin = (
        "import json, os, sys, time\n"
        "def say(**message): print('@peers ' + json.dumps(message), flush=True)\n"
        "given = {} if sys.argv[1] == 'build' else json.loads(sys.argv[1])\n"
        f"columns = {peer_rows.COLUMNS!r}\n"
        "def row(case, peer):\n"
        "    key = dict(peer=peer, workload=case['workload'], locations=case['locations'], dtype=case['dtype'])\n"
        "    say(row={**dict.fromkeys(columns, ''), **key, 'forward_us': '1.00', 'backward_us': '2.00'})\n"
    )
    file.write_text(begin + program)
    monkeypatch.setattr(peers, "WORKER", file)


CASES = """
say(versions='v')
for index, case in enumerate(given['cases']):
    say(case=index)
    for peer in case['peers']:
        say(step='errors and memory', peer=peer)
        {fault}
    for peer in case['peers']: row(case, peer)
say(done=True)
"""


def measured(record: Path) -> set[tuple[str, ...]]:
    return {tuple(line.split(",")[:2]) for line in rows_of(record.read_text())}


def run(record: Path, *more: str) -> int:
    given = ["--device", "cpu", "--record", str(record), "--dtypes", "f32", "--locations", "local"]
    return int(peers.main([*given, "--peers", "msdeform", "other", *more]))


@pytest.mark.parametrize("fault", ["time.sleep(60)", "os._exit(3)", "raise RuntimeError('illegal address')"])
def test_a_peer_that_hangs_or_crashes_costs_its_own_row_alone(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    worker(tmp_path, monkeypatch, CASES.format(fault=f"if (peer, case['workload']) == ('other', 'm2f_enc'): {fault}"))
    record = tmp_path / "peers.csv"
    assert run(record, "--only", "ddetr_enc", "m2f_enc", "dino_dec", "--limit", "1.5") == 0
    expected = {("msdeform", name) for name in ("ddetr_enc", "m2f_enc", "dino_dec")}
    assert measured(record) == expected | {("other", "ddetr_enc"), ("other", "dino_dec")}
    said = capfd.readouterr().out
    assert "m2f_enc local f32, other: " in said
    assert ("not done after" in said) if "sleep" in fault else ("ended with" in said)
    assert "illegal" not in fault or "illegal address" in said


def test_a_peer_that_always_hangs_is_left_out_after_two_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    worker(tmp_path, monkeypatch, CASES.format(fault="if peer == 'other': time.sleep(60)"))
    record = tmp_path / "peers.csv"
    start = time.monotonic()
    assert run(record, "--limit", "1") == 0
    assert time.monotonic() - start < 30
    assert measured(record) == {("msdeform", name) for name in peers.NAMES}
    assert "other: not tried again after 2 faults" in capfd.readouterr().out


def test_what_was_measured_is_kept_when_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    worker(tmp_path, monkeypatch, CASES.format(fault="if index: time.sleep(0.6)"))
    record = tmp_path / "peers.csv"
    assert run(record, "--seconds", "1") == 0
    assert ("msdeform", "ddetr_enc") in measured(record) and ("msdeform", "seed_6x8") not in measured(record)
    assert "out of time" in capfd.readouterr().out


def test_a_worker_that_does_not_start_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(tmp_path, monkeypatch, "sys.exit('no PyTorch here')\n")
    assert run(tmp_path / "peers.csv") == 1


@pytest.mark.parametrize(("program", "is_built"), [("say(built=True)", True), ("sys.exit('no ninja')", False)])
def test_a_backend_that_cannot_be_compiled_is_left_out(
    program: str, is_built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker(tmp_path, monkeypatch, program + "\n")
    cases = peers.plan(["ddetr_enc"], ["f32"], peers.DEFAULT_PEERS, ["local"])
    task = peers.Run(cases, tmp_path, "cuda", 1, 1.0, time.monotonic() + 60, lambda *_: None)
    task.build(20.0)
    assert (peers.CUDA in task.cases[0].peers) == is_built
    assert is_built or "no ninja" in task.failures[0]


def test_the_plan_begins_with_what_documents_need_most() -> None:
    cases = peers.plan(peers.NAMES, peers.DTYPES, ["msdeform"], ["local", "uniform"])
    assert len(cases) == 27 and [str(case) for case in cases[:2]] == ["ddetr_enc local f32", "ddetr_dec local f32"]
    assert {case.locations for case in cases[:24]} == {"local"}
    assert [case.dtype for case in cases[24:]] == list(peers.DTYPES)
    # It goes to a worker as JSON.
    assert json.loads(json.dumps(peers.asdict(cases[0])))["peers"] == ["msdeform"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU is needed")
def test_a_gpu_gives_every_number(tmp_path: Path) -> None:
    write_workload(tmp_path, "ddetr_dec", points='"uniform"')
    case = peer_rows.Case("ddetr_dec", "local", "f16", ("msdeform", "grid_sample"))
    told: list[dict[str, Any]] = []
    found = list(peer_calls.measure(case, tmp_path, "cuda", 3, peer_calls.GpuClock(), told.append))
    assert not any("failed" in message for message in told), told
    columns = ("forward_us", "backward_us", "forward_graph_us", "backward_graph_us")
    for row in found:
        assert all(float(row[column]) > 0 for column in columns) and float(row["backward_memory_mib"]) >= 0
