"""What `patch()` does on a GPU alone: captures, trouble, and bitwise reproducible trainings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msdeform
import pytest
import torch
from made_up_framework import KNOWN, SOURCE, STARTS, framework
from msdeform import _native
from oracle import assert_close, make_case, reference
from patched_models import CountCalls, rt_detr, train

# What cuBLAS wants for the deterministic mode, read when it is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    from msdeform.patching import calling

    yield
    calling._given_up.clear()


def on_gpu() -> tuple[Any, tuple[Any, ...]]:
    case = make_case(device="cuda")
    return case, (case.value, case.shapes, case.locations, case.weights)


def test_a_device_on_which_the_operator_fails_goes_on_with_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    from msdeform.patching import calling

    module = framework()
    msdeform.patch()
    case, arguments = on_gpu()
    calls: list[int] = []

    def refuse(*_: Any) -> Any:
        calls.append(1)
        raise _native.Unavailable("no NVRTC")

    monkeypatch.setattr(calling, "attend", refuse)
    with pytest.warns(UserWarning, match="does not run on cuda:0.*no NVRTC"):
        for _ in range(2):
            output = module.ms_deform_attn_core_pytorch(*arguments)
            assert_close(output.cpu(), reference(case).cpu(), 1e-4)
    assert len(calls) == 1, "it was asked again"


def test_a_capture_with_shapes_that_were_never_read_takes_the_original() -> None:
    """Here an extension that runs in a capture is imitated by a multiplication."""
    module = framework()
    apply = "return value.new_ones(value.shape[0], sampling_locations.shape[1], value.shape[2] * value.shape[3]) * 3"
    source = SOURCE.replace('raise RuntimeError("the extension was not built")', apply)
    exec(source.format(parameters=KNOWN, padding="zeros"), vars(module))
    msdeform.patch()
    case, _ = on_gpu()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    apply_it = module.MSDeformAttnFunction.apply
    read = (torch.tensor(case.shapes).cuda(), torch.tensor(STARTS).cuda())
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            expected = apply_it(case.value, *read, case.locations, case.weights, 64)
        unread = tuple(tensor.clone() for tensor in read)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            remembered = apply_it(case.value, *read, case.locations, case.weights, 64)
            original = apply_it(case.value, *unread, case.locations, case.weights, 64)
    graph.replay()
    torch.cuda.synchronize()
    assert_close(remembered.cpu(), expected.cpu(), 1e-6)
    assert bool((original == 3).all())


def test_a_layer_of_rfdetr_is_captured_with_shapes_made_in_the_capture() -> None:
    pytest.importorskip("rfdetr")
    from rfdetr.models.ops.modules import MSDeformAttn

    msdeform.patch("rfdetr")
    layer = MSDeformAttn(d_model=32, n_levels=2, n_heads=4, n_points=3).cuda()
    shapes = [(8, 10), (4, 5)]
    query, boxes, pixels = (torch.rand(shape, device="cuda") for shape in ((2, 7, 32), (2, 7, 2, 4), (2, 100, 32)))
    starts = torch.tensor([0, 80]).cuda()

    def forward() -> torch.Tensor:
        made = torch.zeros(2, 2, dtype=torch.int64, device="cuda")  # Boxes do not look at it.
        result: torch.Tensor = layer(query, boxes, pixels, made, starts, input_spatial_shapes_hw=shapes)
        return result

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.stream(stream):
        with CountCalls() as count:
            expected = forward()
        assert count.forward == 1
        forward()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            output = forward()
    graph.replay()
    torch.cuda.synchronize()
    assert_close(output.cpu(), expected.cpu(), 1e-6)


def test_two_training_runs_of_transformers_give_the_same_bits() -> None:
    pytest.importorskip("transformers")
    msdeform.patch("transformers")
    pixels = torch.randn(2, 3, 64, 64, device="cuda")

    def loss(model: Any) -> torch.Tensor:
        result: torch.Tensor = model(pixel_values=pixels).last_hidden_state.abs().mean()
        return result

    runs = [train(lambda: rt_detr().train().cuda(), loss) for _ in range(2)]
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in runs[0])


def test_ultralytics_gives_the_same_with_and_without(tmp_path: Path) -> None:
    pytest.importorskip("ultralytics")
    from test_patching_ultralytics import CONFIG, batch, loss, small

    path = tmp_path / "rtdetr-small.yaml"
    path.write_text(CONFIG)
    network = small(path).model.cuda().eval()
    pixels = batch()["img"].cuda()
    with torch.no_grad():
        before = network(pixels)[0]
        msdeform.patch("ultralytics")
        with CountCalls() as count:
            after = network(pixels)[0]
    assert count.forward == 2
    assert_close(after.cpu(), before.cpu(), 1e-3)
    runs = [train(lambda: small(path).model.cuda().train(), lambda model: loss(model)) for _ in range(2)]
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in runs[0])
