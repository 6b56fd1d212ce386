"""The plugins for TensorRT, defined with NVIDIA's own bindings. No engine is built and nothing runs: that needs a GPU.

`crates/msdeform-emulator/tests/tensorrt.rs` runs the same kernel with the same arguments against the reference.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import msdeform
import numpy as np
import pytest
from tensorrt_stand_in import Planned, load, plan, stand_in_for_sizes

onnx = pytest.importorskip("onnx")
OPEN = {0, 1}
# Rows of a block follow from the channels: lanes of a row are a power of two.
THREADS = 128


@pytest.fixture(scope="module")
def trt(tmp_path_factory: Any) -> Iterator[Any]:
    """TensorRT with our plugins."""
    found = load(tmp_path_factory.mktemp("stubs"))
    from msdeform.tensorrt import register

    register()
    yield found
    # Other packages would take the stand-in for TensorRT.
    for name in [name for name in sys.modules if re.match(r"(msdeform\.)?tensorrt(\.|$)", name)]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _sizes(trt: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stand_in_for_sizes(trt, monkeypatch)
    yield


@pytest.fixture
def nvrtc() -> None:
    """NVRTC, which compiles to PTX without a GPU."""
    if not msdeform.device_info()["cuda"]["nvrtc"]:
        assert "MSDEFORM_REQUIRE_NVRTC" not in os.environ
        pytest.skip("NVRTC is not installed")


Tensors = list[tuple[Any, tuple[int, ...]]]


def plain(trt: Any, kind: Any, sampling: Any, points: tuple[int, ...] = (4, 4), channels: int = 32) -> Tensors:
    integer, levels = trt.int64, len(points)
    samples = (levels, points[0]) if len(set(points)) == 1 else (sum(points),)
    return [
        (kind, (2, 1280, 8, channels)),
        (integer, (levels, 2)),
        (integer, (levels,)),
        (sampling, (2, 300, 8, *samples, 2)),
        (sampling, (2, 300, 8, *samples)),
    ]


def from_offsets(trt: Any, kind: Any, references: tuple[int, ...]) -> Tensors:
    value, shapes, starts, offsets, logits = plain(trt, kind, kind)
    return [value, shapes, starts, (kind, references), offsets, logits]


def field(trt: Any, name: str, value: Any) -> tuple[str, Any, Any]:
    """An attribute as TensorRT's parser passes it."""
    kinds = {np.dtype(np.int64): trt.PluginFieldType.INT64, np.dtype(np.float64): trt.PluginFieldType.FLOAT64}
    array = np.atleast_1d(np.asarray(value))
    return name, array, kinds[array.dtype]


def plain_fields(trt: Any, points: tuple[int, ...] = (0,)) -> list[tuple[str, Any, Any]]:
    return [field(trt, "points", points)]


def offset_fields(trt: Any, scale: float = 0.5, anchors: int = 0) -> list[tuple[str, Any, Any]]:
    numbers = {"offset_scale": scale, "anchors": anchors, "softmax": 1, "nearest": 0}
    return plain_fields(trt) + [field(trt, *named) for named in numbers.items()]


def parameters_of(planned: Planned) -> list[str]:
    """The types of the kernel's parameters in the PTX."""
    (found,) = re.findall(rf"\.entry {planned.name}\((.*?)\)", planned.ptx, re.DOTALL)
    return re.findall(r"\.param \.(\w+)", found)


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    ("dtype", "sampling"), [("float32", "float32"), ("float16", "float16"), ("float16", "float32")]
)
def test_a_node_of_the_plain_operator_becomes_a_launch(trt: Any, dtype: str, sampling: str) -> None:
    kind = getattr(trt, dtype)
    tensors = plain(trt, kind, getattr(trt, sampling))
    planned = plan(trt, "MSDeformAttn", tensors, OPEN, plain_fields(trt))
    assert planned.types == [kind] and planned.shape == [2, 300, 256]
    linear = trt.TensorFormat.LINEAR
    assert planned.formats == [(each, linear) for each, _ in tensors] + [(kind, linear)]
    # Batch, pixels and queries; pointers to the inputs before them, and to the output after them.
    assert planned.extra == [2, 1280, 300]
    assert parameters_of(planned) == ["u64"] * 5 + ["u32"] * 3 + ["u64"]
    lanes = 32 * kind.itemsize // 16
    blocks = -(-2 * 300 * 8 * lanes // THREADS)
    assert vars(planned.launch) == {
        **dict.fromkeys(("grid_y", "grid_z", "block_y", "block_z"), 1),
        "grid_x": blocks,
        "block_x": THREADS,
        "shared_mem": 64,
    }


@pytest.mark.usefixtures("nvrtc")
def test_levels_may_have_points_of_their_own_and_32_bit_sizes(trt: Any) -> None:
    tensors = plain(trt, trt.float32, trt.float32, points=(2, 5))
    tensors[1:3] = [(trt.int32, shape) for _, shape in tensors[1:3]]
    planned = plan(trt, "MSDeformAttn", tensors, OPEN, plain_fields(trt, (2, 5)))
    assert planned.shape == [2, 300, 256] and planned.extra == [2, 1280, 300]
    with pytest.raises(ValueError, match=r"`sampling_locations` has shape"):
        plan(trt, "MSDeformAttn", tensors, OPEN, plain_fields(trt, (2, 4)))


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    ("references", "anchors"), [((2, 300, 2, 2), 0), ((1, 300, 1, 4), 0), ((2, 1, 2, 4), 0), ((1, 1, 2, 4), 1)]
)
def test_a_node_of_the_fused_operator_becomes_a_launch(trt: Any, references: tuple[int, ...], anchors: int) -> None:
    tensors = from_offsets(trt, trt.float16, references)
    planned = plan(trt, "MSDeformAttnFromOffsets", tensors, OPEN, offset_fields(trt, anchors=anchors))
    assert planned.types == [trt.float16] and planned.shape == [2, 300, 256]
    assert planned.extra == [2, 1280, 300, *references[:2]]
    assert parameters_of(planned) == ["u64"] * 6 + ["u32"] * 5 + ["u64"]


@pytest.mark.usefixtures("nvrtc")
def test_attributes_are_compiled_in(trt: Any) -> None:
    def name(**fields: Any) -> str:
        tensors = from_offsets(trt, trt.float32, (2, 300, 2, 4))
        return plan(trt, "MSDeformAttnFromOffsets", tensors, OPEN, offset_fields(trt, **fields)).name

    assert len({name(), name(scale=0.25), name(anchors=1)}) == 3
    assert name() == name()


@pytest.mark.usefixtures("nvrtc")
def test_fixed_and_open_sizes_have_the_same_kernel(trt: Any) -> None:
    tensors = plain(trt, trt.float32, trt.float32)
    fixed, opened = (plan(trt, "MSDeformAttn", tensors, axes, plain_fields(trt)) for axes in (set(), OPEN))
    assert (fixed.name, fixed.ptx, fixed.launch, fixed.extra) == (opened.name, opened.ptx, opened.launch, opened.extra)


def test_a_node_that_no_kernel_takes_is_refused(trt: Any) -> None:
    tensors = plain(trt, trt.float32, trt.float32)

    def refused(error: type[Exception], words: str, place: int, tensor: Any, open_axes: set[int] = OPEN) -> None:
        changed = [*tensors[:place], tensor, *tensors[place + 1 :]]
        with pytest.raises(error, match=words):
            plan(trt, "MSDeformAttn", changed, open_axes, plain_fields(trt))

    refused(TypeError, "`value` is INT8, expected one of FLOAT, HALF, BF16", 0, (trt.int8, tensors[0][1]))
    refused(TypeError, "one type", 1, (trt.int32, (2, 2)))
    refused(ValueError, "`value` has 3 axes, expected 4", 0, (trt.float32, (2, 1280, 256)))
    refused(ValueError, "attention_weights", 4, (trt.float32, (2, 300, 4, 2, 4)))
    refused(ValueError, "axis 3 of `value` may change", 0, tensors[0], {0, 1, 3})


def test_registering_again_changes_nothing(trt: Any) -> None:
    from msdeform.tensorrt import register

    before = len(trt.get_plugin_registry().all_creators)
    register()
    assert len(trt.get_plugin_registry().all_creators) == before


def test_a_prepared_model_has_every_attribute(trt: Any) -> None:
    from msdeform.tensorrt import prepare

    helper = onnx.helper
    nodes = [
        helper.make_node("MSDeformAttn", ["a"], ["b"], domain="msdeform", points=[2, 3]),
        helper.make_node("MSDeformAttnFromOffsets", ["b"], ["c"], domain="msdeform", anchors=1),
        helper.make_node("Relu", ["c"], ["d"]),
    ]
    model = helper.make_model(helper.make_graph(nodes, "model", [], []))
    before = model.SerializeToString()
    prepared = prepare(model)
    found = [{one.name: helper.get_attribute_value(one) for one in node.attribute} for node in prepared.graph.node]
    plugin = {"plugin_namespace": b"msdeform", "plugin_version": b"1"}
    assert found[0] == {"points": [2, 3], **plugin}
    numbers = {"points": [0], "offset_scale": 0.5, "anchors": 1, "softmax": 1, "nearest": 0}
    assert found[1] == {**numbers, **plugin} and found[2] == {}
    assert model.SerializeToString() == before and prepare(prepared) == prepared
    del model.graph.node[:2]
    with pytest.raises(ValueError, match="no node of MSDeformAttn"):
        prepare(model)
