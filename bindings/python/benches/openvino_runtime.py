"""Times of the operator in OpenVINO and of what exporters write: a GridSample per level, stacked and summed.

    python benches/openvino_runtime.py --library FILE [--workloads NAME ...] [--rounds N] [--threads N]
                                       [--record] [--root records]

All sides get the same inputs in one process and are compared before anything is timed: GridSample by OpenVINO itself,
the library of `bindings/openvino`, and `msdeform.openvino.add_extension`. Then they take turns, and the figures are
medians of the ratios of neighbours in time, so that other work on the machine slows all sides down. `deformable_detr`
is a whole model of transformers with random weights. It has a row in bf16 too on CPUs where that is OpenVINO's default.
The record is `openvino.json` in `<root>/<device>/<date>-<revision>-openvino`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msdeform.onnx
import numpy as np
import onnx_runtime as nodes
import openvino
from msdeform.openvino import add_extension

Array = nodes.Array
# Of a whole model in f32, because other operations round too. In bf16 an error may be so many times that of GridSample.
MODEL_BOUND, BF16_FACTOR = 1e-3, 1.5
MODEL, MODEL_SIZE, MODEL_ROUNDS = "deformable_detr", 640, 8


def request(model: bytes, inputs: dict[str, Array], threads: int, library: str | None, precision: str = "f32") -> Any:
    """A request with its inputs, of a core with the operators of a library, or else with Python's."""
    core = openvino.Core()
    if library is None:
        add_extension(core, threads)
    else:
        core.add_extension(library)
    # On some CPUs OpenVINO computes in bfloat16 unless told otherwise.
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
    found = core.compile_model(core.read_model(model), "CPU", options)
    made = found.create_infer_request()
    for port in found.inputs:
        made.set_tensor(port, openvino.Tensor(inputs[port.any_name]))
    return made


@cache
def pair(name: str) -> tuple[bytes, bytes, dict[str, Array], int]:
    """A model with GridSample, the same with the operator, inputs, and how often both run."""
    if name != MODEL:
        workload = nodes.WORKLOADS[name]
        models = nodes.grid_sample_model(workload), nodes.operator_model(workload)
        return *models, nodes.inputs_of(workload), workload.rounds
    before = exported_model(MODEL_SIZE)
    report = msdeform.onnx.rewrite(before, to="msdeform", check=False)
    if report.left or not report.rewritten:
        raise RuntimeError(f"{name}: {len(report.rewritten)} sites were rewritten, these were left: {report.left}")
    pixels = np.random.default_rng(20).standard_normal((1, 3, MODEL_SIZE, MODEL_SIZE)).astype(np.float32)
    return before, report.model, {"pixels": pixels}, MODEL_ROUNDS


def exported_model(size: int) -> bytes:
    """Deformable-DETR of transformers as the exporter by TorchScript writes it."""
    import torch
    from transformers import DeformableDetrConfig, DeformableDetrModel, ResNetConfig

    backbone = ResNetConfig(out_features=["stage2", "stage3", "stage4"])
    torch.manual_seed(6)
    configuration = DeformableDetrConfig(use_timm_backbone=False, backbone=None, backbone_config=backbone)
    model = DeformableDetrModel(configuration).eval()
    # New models look straight ahead.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sampling_offsets" in name or "attention_weights" in name:
                parameter.add_(torch.randn_like(parameter) * 0.05)

    class LastState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            state: torch.Tensor = self.model(pixel_values=pixels).last_hidden_state
            return state

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        pixels = torch.zeros(1, 3, size, size)
        options = {"input_names": ["pixels"], "opset_version": 17, "dynamo": False}
        torch.onnx.export(LastState(), (pixels,), str(path), **options)
        return path.read_bytes()


def precisions(name: str) -> tuple[str, ...]:
    """What a workload is measured in: a layer alone would get locations that are rounded to bf16."""
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return ("f32", "bf16") if name == MODEL and "BF16" in capabilities else ("f32",)


def output_of(runs: Any) -> Array:
    """The output of one run."""
    runs.infer()
    found: Array = runs.get_output_tensor(0).data.copy()
    return found


def largest_error(name: str, precision: str, found: dict[str, Array], exact: Array) -> float:
    """The larger error of the operator's two sides against GridSample in f32; too large a one is an exception."""
    errors = {side: nodes.relative_error(output, exact) for side, output in found.items()}
    bound = MODEL_BOUND if name == MODEL else nodes.BOUND
    if precision != "f32":
        bound = BF16_FACTOR * errors["grid_sample"]
    error = max(errors["operator"], errors["python"])
    if not error <= bound:
        raise RuntimeError(f"{name} in {precision}: the sides differ by {error}, more than {bound}")
    return error


def measure(name: str, threads: int, library: str, rounds: int | None = None, precision: str = "f32") -> dict[str, Any]:
    """A row: all sides verified, then timed in turns."""
    before, after, inputs, usual = pair(name)
    sides = {
        "grid_sample": request(before, inputs, threads, library, precision),
        "operator": request(after, inputs, threads, library, precision),
        "python": request(after, inputs, threads, None, precision),
    }
    found = {side: output_of(runs) for side, runs in sides.items()}
    exact = found["grid_sample"] if precision == "f32" else output_of(request(before, inputs, threads, library))
    error = largest_error(name, precision, found, exact)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds or usual):
        for side, runs in sides.items():
            times[side].append(nodes.time_us(runs.infer))

    def ratios(side: str) -> dict[str, float]:
        return nodes.quantiles([slow / fast for slow, fast in zip(times["grid_sample"], times[side], strict=True)])

    return {
        "workload": name,
        "images": 1,
        "dtype": precision,
        "threads": threads,
        "rel_l2": float(f"{error:.2e}"),
        "grid_sample_us": nodes.quantiles(times["grid_sample"]),
        "operator_us": nodes.quantiles(times["operator"]),
        "python_us": nodes.quantiles(times["python"]),
        "speedup": ratios("operator"),
        "python_speedup": ratios("python"),
        "samples_us": {side: [round(sample, 2) for sample in samples] for side, samples in times.items()},
    }


def main(given: Sequence[str] | None = None) -> int:
    """Measures, prints, records where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    workloads = (*nodes.WORKLOADS, MODEL)
    parser.add_argument("--library", required=True, help="the library that bindings/openvino builds")
    parser.add_argument("--workloads", nargs="+", choices=workloads, default=list(workloads))
    parser.add_argument("--rounds", type=int, help="runs of each side")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of a model")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[3] / "records")
    arguments = parser.parse_args(given)
    runtime = ("openvino", openvino.__version__.partition("-")[0])
    command = sys.argv[1:] if given is None else given
    rows = []
    for name, precision in [(workload, each) for workload in arguments.workloads for each in precisions(workload)]:
        rows.append(measure(name, arguments.threads, arguments.library, arguments.rounds, precision))
        print(nodes.summary(rows[-1]), f"by Python {rows[-1]['python_speedup']['median']:.1f}x", flush=True)
        if arguments.record:
            # After each, because the export of the model takes minutes.
            print(nodes.write(rows, arguments.root, command, "openvino_runtime.py", runtime), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
