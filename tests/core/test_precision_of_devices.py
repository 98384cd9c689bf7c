"""Devices that can't compute in a dtype are named before a run begins."""

import pytest

from core import precision
from core.errors import ConfigurationError
from core.precision import Precision


@pytest.mark.parametrize(
    ("given", "device", "capability", "says"),
    [
        ("float16", "TPU:0", (99, 0), "compute in float16, which TPUs don't compute in: give 'bfloat16'"),
        ("bfloat16", "GPU:0", (7, 5), "capability 8.0, but this one has 7.5: give 'float16' or 'float32'"),
        ("float16", "GPU:0", (5, 2), "capability 5.3, but this one has 5.2: give 'float32'"),
        ({"d": "bfloat16"}, "GPU:0", (7, 5), "lets phase `d` compute in bfloat16"),
    ],
)
def test_device_that_cannot_compute_in_the_dtype_is_refused(given, device, capability, says, monkeypatch):
    monkeypatch.setattr(precision, "_capability", lambda: capability)
    with pytest.raises(ConfigurationError) as raised:
        Precision(given).check_device(["g", "d"], device)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("given", "device", "capability"),
    [
        ("float32", "TPU:0", (99, 0)),
        ("bfloat16", "TPU:0", (99, 0)),
        ("bfloat16", "GPU:0", (8, 0)),
        ("float16", "GPU:0", (5, 3)),
        ("float16", "CPU:0", (0, 0)),
        ({"other": "bfloat16"}, "GPU:0", (7, 5)),
    ],
)
def test_other_devices_are_taken(given, device, capability, monkeypatch):
    monkeypatch.setattr(precision, "_capability", lambda: capability)
    Precision(given).check_device(["g", "d"], device)
