"""Measures which ONNX runtimes compute the attention correctly, and writes the page: measure_runtimes.py [--measure]

With --measure it runs a decoder layer in every installed runtime (`msdeform.onnx.check`), and
records the result in docs/grid-sample.json. It always writes the tables of docs/grid-sample.md from that record.
Install the runtimes first:

    pip install msdeform onnx onnxruntime openvino MNN ncnn pnnx tract
    npm install onnxruntime-web
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECORD, PAGE = DOCS / "grid-sample.json", DOCS / "grid-sample.md"
BEGIN, END = "<!-- runtimes:begin -->", "<!-- runtimes:end -->"
LEVELS = [(80, 80), (40, 40), (20, 20)]
HEADS, CHANNELS, POINTS = 8, 32, 4
# A decoder of an image of 640 x 640 pixels.
SITES = {"decoder": 300}


def layers() -> bytes:
    """A model with one attention for each entry of `SITES`, between inputs of fixed sizes."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    pixels = sum(height * width for height, width in LEVELS)
    starts = np.cumsum([0, *(height * width for height, width in LEVELS[:-1])]).astype(np.int64)
    constants = [
        numpy_helper.from_array(np.array(LEVELS, np.int64), "shapes"),
        numpy_helper.from_array(starts, "starts"),
    ]

    def info(name: str, *sizes: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)

    inputs, outputs, nodes = [info("value", 1, pixels, HEADS, CHANNELS)], [], []
    for name, queries in SITES.items():
        samples = (1, queries, HEADS, len(LEVELS), POINTS)
        inputs += [info(f"{name}.locations", *samples, 2), info(f"{name}.weights", *samples)]
        outputs.append(info(f"{name}.output", 1, queries, HEADS * CHANNELS))
        names = ["value", "shapes", "starts", f"{name}.locations", f"{name}.weights"]
        nodes.append(helper.make_node("MSDeformAttn", names, [f"{name}.output"], name, domain="msdeform"))
    graph = helper.make_graph(nodes, "layers", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("msdeform", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def measure() -> dict[str, Any]:
    """Runs everything that is installed."""
    from dataclasses import asdict

    import msdeform
    import msdeform.onnx

    report = msdeform.onnx.check(layers())
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_name(),
        "msdeform": msdeform.__version__,
        "python": platform.python_version(),
        "rows": [asdict(row) for row in report.rows],
    }


def cpu_name() -> str:
    """The CPU, and whether it has bf16, which decides about OpenVINO's default."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in info.read_text().split("\n\n")[0].splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    has_bf16 = "avx512_bf16" in fields.get("flags", "")
    return f"{fields.get('model name', platform.machine())}{', with avx512_bf16' if has_bf16 else ''}"


def tables(record: dict[str, Any]) -> str:
    """The tables of the page."""
    lines = [
        f"Measured on {record['date']} with msdeform {record['msdeform']} on {record['cpu']}.",
        "",
        "| runtime | form | dtype | error | error at edges | ms | |",
        "|---|---|---|---|---|---|---|",
    ]
    rows: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    reasons: dict[tuple[str, str], list[str]] = {}
    missing = []
    for row in record["rows"]:
        if row["version"] is None:
            missing.append(f"{row['runtime']} ({row['note']})")
            continue
        key = (f"{row['runtime']} {row['version']}", row["form"], row["dtype"])
        rows.setdefault(key, {})[row["site"]] = row
    for key, sites in rows.items():
        given = list(sites.values())
        notes = sorted({row["note"] for row in given if row["note"]})
        verdict = "**differs**" if any(row["passed"] is False for row in given) else "correct"
        times = [milliseconds(sites.get(name)) for name in SITES]
        errors = [largest(given, kind) for kind in ("error", "edge_error")]
        lines.append(f"| {' | '.join([*key, *errors, *times, 'does not run' if notes else verdict])} |")
        for note in notes:
            reasons.setdefault((key[0], note.removeprefix("does not run: ")), []).append(f"{key[1]} in {key[2]}")
    if reasons:
        lines += ["", "Why some rows have no figures:", ""]
        lines += [f"- {name}, {' and '.join(which)}: {note}." for (name, note), which in reasons.items()]
    if missing:
        lines += ["", f"Not run: {', '.join(missing)}."]
    return "\n".join(lines)


def milliseconds(row: dict[str, Any] | None) -> str:
    """The time of a site."""
    return "" if row is None or row["ms"] is None else f"{row['ms']:.1f}"


def largest(rows: list[dict[str, Any]], key: str) -> str:
    """The largest error of the sites; NaN is larger than any."""
    given = [row[key] for row in rows if row["ms"] is not None]
    if not given:
        return ""
    return "NaN" if any(x is None or x != x for x in given) else f"{max(given):.1e}"


def page(text: str, record: dict[str, Any]) -> str:
    """The page with new tables."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{tables(record)}\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Writes the record, if asked to, and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run the runtimes and write the record")
    if parser.parse_args(arguments).measure:
        # JSON has no NaN.
        record = json.loads(json.dumps(measure()), parse_constant=lambda _: None)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), json.loads(RECORD.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
