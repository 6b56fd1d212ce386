"""NumPy arrays and DLPack, without PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msdeform
import numpy as np
import pytest

SHAPES = [(6, 7), (3, 4)]


def arrays(dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(3)
    value = random.standard_normal((2, 54, 3, 5)).astype(dtype)
    locations = random.random((2, 4, 3, 2, 3, 2)).astype(dtype)
    weights = random.random((2, 4, 3, 2, 3)).astype(dtype)
    return value, locations, weights


def by_hand(value: Any, locations: Any, weights: Any) -> Any:
    """One sample after the other, in float64."""
    value, locations, weights = (array.astype(np.float64) for array in (value, locations, weights))
    batch, _, heads, channels = value.shape
    queries = locations.shape[1]
    output = np.zeros((batch, queries, heads, channels))
    for n, q, m, level, p in np.ndindex(batch, queries, heads, len(SHAPES), locations.shape[4]):
        height, width = SHAPES[level]
        start = sum(h * w for h, w in SHAPES[:level])
        x, y = locations[n, q, m, level, p] * (width, height) - 0.5
        left, top = int(np.floor(x)), int(np.floor(y))
        for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            if 0 <= row < height and 0 <= column < width:
                share = (1 - abs(x - column)) * (1 - abs(y - row))
                pixel = value[n, start + row * width + column, m]
                output[n, q, m] += weights[n, q, m, level, p] * share * pixel
    return output.reshape(batch, queries, heads * channels)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float16", 5e-4), ("float64", 1e-12)])
def test_arrays_in_an_array_of_the_same_format_out(dtype: str, bound: float) -> None:
    value, locations, weights = arrays(dtype)
    output = msdeform.ms_deform_attn(value, SHAPES, None, locations, weights)
    expected = by_hand(value, locations, weights)
    assert isinstance(output, np.ndarray) and output.dtype == dtype
    assert np.linalg.norm(output - expected) <= bound * np.linalg.norm(expected)


def test_shapes_and_starts_may_be_arrays_and_points_a_list_a_number_or_left_out() -> None:
    value, locations, weights = arrays()
    expected = msdeform.ms_deform_attn(value, SHAPES, None, locations, weights)
    found = msdeform.ms_deform_attn(value, np.array(SHAPES), np.array([0, 42]), locations, weights)
    np.testing.assert_array_equal(found, expected)
    for points in (None, 3, np.int64(3), [3, 3]):
        found = msdeform.ms_deform_attn(
            value=value,
            spatial_shapes=SHAPES,
            sampling_locations=locations.reshape(2, 4, 3, 6, 2),
            attention_weights=weights.reshape(2, 4, 3, 6),
            points=points,
        )
        np.testing.assert_array_equal(found, expected)


def test_any_strides_negative_ones_included() -> None:
    value, locations, weights = arrays()
    expected = msdeform.ms_deform_attn(value, SHAPES, None, locations, weights)
    backwards = np.ascontiguousarray(value[::-1, :, ::-1])[::-1, :, ::-1]
    assert min(backwards.strides) < 0
    spread = np.repeat(locations, 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(msdeform.ms_deform_attn(backwards, SHAPES, None, spread, weights), expected)


def test_half_values_with_float_locations() -> None:
    value, locations, weights = arrays()
    output = msdeform.ms_deform_attn(value.astype(np.float16), SHAPES, None, locations, weights)
    expected = by_hand(value.astype(np.float16), locations, weights)
    assert output.dtype == np.float16
    assert np.linalg.norm(output - expected) <= 5e-4 * np.linalg.norm(expected)


class OnlyDlpack:
    """An array that speaks nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        found: tuple[int, int] = self.array.__dlpack_device__()
        return found


def test_anything_with_dlpack_is_an_array() -> None:
    value, locations, weights = arrays()
    expected = msdeform.ms_deform_attn(value, SHAPES, None, locations, weights)
    found = msdeform.ms_deform_attn(OnlyDlpack(value), SHAPES, None, OnlyDlpack(locations), weights)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"value": np.zeros((2, 54, 3, 5), dtype=np.int32)}, TypeError, "`value` is int32"),
        ({"value": [1, 2]}, TypeError, "`value` is a builtins.list"),
        ({"value": np.zeros((2, 53, 3, 5), dtype=np.float32)}, ValueError, "53 pixels"),
        ({"value": np.zeros((2, 54, 15), dtype=np.float32)}, ValueError, "`value` has shape [2, 54, 15]"),
        ({"value": np.zeros((2, 60, 3, 5), dtype=np.float32)}, ValueError, "60 pixels, but the levels of"),
        ({"spatial_shapes": [(6, 7)], "level_start_index": [0]}, ValueError, "`sampling_locations` has shape"),
        ({"spatial_shapes": [(6, 7), (3, 4.5)]}, TypeError, "`spatial_shapes`"),
        ({"level_start_index": [0]}, ValueError, "`level_start_index` has 1 entries for 2 levels"),
        ({"sampling_locations": np.zeros((2, 4, 3, 7, 2), dtype=np.float32)}, ValueError, "points=[...]"),
        ({"points": 2.5}, TypeError, "`points` must be a number of points"),
        ({"attention_weights": np.zeros((2, 5, 3, 2, 3), dtype=np.float32)}, ValueError, "expected [2, 4, 3, 2, 3]"),
        ({"attention_weights": None}, TypeError, "`attention_weights`"),
        ({"threads": 0}, ValueError, "`threads` must be a number of threads, 1 or more, found 0"),
        ({"threads": 2.5}, ValueError, "`threads` must be a number of threads"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], error: type[Exception], says: str) -> None:
    value, locations, weights = arrays()
    arguments: dict[str, Any] = {
        "value": value,
        "spatial_shapes": SHAPES,
        "sampling_locations": locations,
        "attention_weights": weights,
    }
    with pytest.raises(error) as caught:
        msdeform.ms_deform_attn(**{**arguments, **change})
    assert says in str(caught.value), caught.value


# Prints how many threads of this package a call has started. They get their names when they run, on a loaded machine
# late: the first argument is how many to wait for, at most 20 seconds; one that should not be there has half a second.
PROGRAM = """
import os, sys, time
if sys.argv[2] == "affinity":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import msdeform, numpy as np
value, locations = np.ones((1, 100, 8, 32), np.float32), np.full((1, 2000, 8, 1, 4, 2), 0.5, np.float32)
keywords = {"threads": int(sys.argv[3])} if len(sys.argv) > 3 else {}
msdeform.ms_deform_attn(value, [(10, 10)], None, locations, locations[..., 0], **keywords)

def started():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum(name.startswith("msdeform-") for name in names)

until = time.monotonic() + 20
while started() < int(sys.argv[1]) and time.monotonic() < until:
    time.sleep(0.05)
time.sleep(0.5)
print(started())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("arguments", "variable", "threads"),
    [
        (["plain"], "3", 3),
        (["plain"], "1", 0),
        (["plain"], "4,2", 4),
        (["plain", "5"], "3", 5),
        (["plain", "1"], "3", 0),
        (["affinity"], None, 0),
        (["affinity", "2"], None, 2),
    ],
)
def test_threads_are_those_wanted(arguments: list[str], variable: str | None, threads: int) -> None:
    """By the argument, by OpenMP's variable, by the cores that the process may run on. One thread is the caller."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if variable is not None:
        environment["OMP_NUM_THREADS"] = variable
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(threads), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(finished.stdout) == threads


def test_importing_the_package_does_not_import_pytorch() -> None:
    program = "import msdeform, sys; msdeform.variants(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
