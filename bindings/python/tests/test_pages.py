"""The pages: their Python runs as it is typed, and the table of functions that are patched is complete."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs"
# Pages of the whole project that have Python in them, and the packages that it needs.
PROJECT_FOLDER = FOLDER.parents[2] / "docs"
PROJECT_PAGES = {
    "grid-sample": ("onnxruntime",),
    "onnx-rewrite": ("onnxruntime",),
    "onnx-runtime": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
    "run": ("safetensors",),
    "start": (),
    "tensorrt": ("onnx", "tensorrt"),
}
# Every page, and the packages that its Python needs.
PAGES = {
    "aoti": (),
    "calling": (),
    "figures": (),
    "from-offsets": (),
    "onnx": ("transformers", "onnxscript"),
    "support": (),
    "troubleshooting": (),
    "patching": (),
    "detr": (),
    "mmcv-detectron2": (),
    "transformers": ("transformers",),
    "hf-kernels": ("transformers", "kernels"),
    "ultralytics": ("ultralytics",),
    "rfdetr": ("rfdetr",),
    # NVRTC compiles without a GPU.
    "warm-up": ("nvidia",),
}
WITHOUT_PYTHON = ("figures", "support")


def test_every_page_is_tested() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page_runs_as_typed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # ultralytics writes settings and results, and would install what it misses.
    os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())
    os.environ.update({"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "HF_HUB_OFFLINE": "1"})
    monkeypatch.chdir(tmp_path)
    for package in PAGES[page]:
        pytest.importorskip(package)
    blocks = re.findall(r"```python\n(.*?)```", (FOLDER / f"{page}.md").read_text(), flags=re.DOTALL)
    assert blocks or page in WITHOUT_PYTHON, f"no Python in {page}.md"
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), {})


def test_every_page_of_the_project_with_python_is_tested() -> None:
    if not PROJECT_FOLDER.is_dir():
        pytest.skip("not in a checkout")
    found = {page.stem for page in PROJECT_FOLDER.rglob("*.md") if "```python" in page.read_text()}
    assert found == set(PROJECT_PAGES)


@pytest.mark.parametrize("page", PROJECT_PAGES)
def test_python_of_a_page_of_the_project_runs_as_typed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not PROJECT_FOLDER.is_dir():
        pytest.skip("not in a checkout")
    for package in PROJECT_PAGES[page]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    # What a page calls the reader's model.
    shutil.copy(PROJECT_FOLDER.parent / "crates/msdeform-onnx/fixtures/transformers_dynamo.onnx", "model.onnx")
    for block in re.findall(r"```python\n(.*?)```", (PROJECT_FOLDER / f"{page}.md").read_text(), flags=re.DOTALL):
        exec(compile(block, f"{page}.md", "exec"), {})
    assert page != "onnx-rewrite" or Path("faster.onnx").exists()


def test_the_table_of_functions_is_that_of_the_package() -> None:
    from msdeform.patching.data import AutogradFunction
    from msdeform.patching.packages import PACKAGES

    rows = {}
    for line in (FOLDER / "patching.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r'`"(\w+)"`', cells[0])
        if names and len(cells) == 3:
            rows[tuple(names)] = re.findall(r"`([\w.]+)`", cells[1])
    for package in PACKAGES:
        expected = [
            f"{place.name}.apply" if isinstance(place, AutogradFunction) else place.name for place in package.places
        ]
        if package.takes_extension:
            expected.append("MultiScaleDeformableAttention")
        assert rows.pop((package.name, *package.aliases)) == expected
    assert not rows


def test_the_table_of_layers_is_that_of_the_package() -> None:
    from msdeform.patching.packages import PACKAGES

    rows = {}
    for line in (FOLDER / "patching.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r'`"(\w+)"`', cells[0])
        if names and len(cells) == 4:
            rows[tuple(names)] = set(re.findall(r"`(\w+)`", cells[1]))
    expected = {(each.name, *each.aliases): {layer.name for layer in each.layers} for each in PACKAGES if each.layers}
    assert rows == expected


def test_tables_of_measurements_are_those_of_their_records() -> None:
    page = (FOLDER / "from-offsets.md").read_text()
    sys.path.insert(0, str(FOLDER.parent / "benches"))
    for part in ("half_precision", "chains", "models"):
        bench = importlib.import_module(part)
        names = re.findall(rf"[Ff]rom `(records/[^`]+)`[^.]*by `benches/{part}\.py`", page)
        assert names, part
        records = [FOLDER.parents[2] / name / "python.json" for name in names]
        if not all(record.is_file() for record in records):
            pytest.skip("not in a checkout")
        first, *older = [bench.table(json.loads(record.read_text())[part]) for record in records]
        assert first in page, f"python benches/{part}.py --table {records[0]}"
        # Of older ones, what the first has not.
        known = {line for table in (first, *older) for line in table.splitlines()}
        head, columns = first.splitlines()[0], first.splitlines()[0].count("|")
        shown = [line for block in page.split(head)[1:] for line in block.split("\n\n")[0].splitlines() if line]
        assert len(shown) > 2 and all(line in known for line in shown if line.count("|") == columns), part


def test_tables_of_trainings_are_those_of_their_records() -> None:
    page = (FOLDER / "patching.md").read_text()
    sys.path.insert(0, str(FOLDER.parent / "benches"))
    bench = importlib.import_module("determinism")
    names = re.findall(r"[Ff]rom\s+`(records/[^`]+)`[^.]*by\s+`benches/determinism\.py`", page)
    assert names
    records = [FOLDER.parents[2] / name / "python.json" for name in names]
    if not all(record.is_file() for record in records):
        pytest.skip("not in a checkout")
    for record in records:
        rows = json.loads(record.read_text())["determinism"]
        assert all(map(bench.is_as_promised, rows))
        assert f"\n\n{bench.table(rows)}\n" in page, f"python benches/determinism.py --table {record}"
    assert page.count(bench.table([]).splitlines()[0]) == len(records)


def test_the_program_in_rust_is_an_example() -> None:
    example = PROJECT_FOLDER.parent / "crates/msdeform-onnxruntime/examples/session.rs"
    if not example.is_file():
        pytest.skip("not in a checkout")
    [block] = re.findall(r"```rust\n(.*?)```", (PROJECT_FOLDER / "onnx-runtime.md").read_text(), flags=re.DOTALL)
    assert example.read_text().endswith(f"\n\n{block}")
