"""Peak memory of the process and of its GPUs."""

import re
from pathlib import Path

import tensorflow as tf

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory() -> None:
    """Resets the peak memory that `peak_memory` returns to the current use."""
    for gpu in _gpus():
        tf.config.experimental.reset_memory_stats(gpu)
    if RESET.exists():
        RESET.write_text("5")  # Linux: the peak becomes the current resident size


def peak_memory() -> dict[str, int]:
    """Returns peak bytes: `{"process": resident memory, "GPU:0": TensorFlow's allocator, ...}`."""
    found = {gpu: int(tf.config.experimental.get_memory_info(gpu)["peak"]) for gpu in _gpus()}
    kilobytes = re.search(r"VmHWM:\s*(\d+)", STATUS.read_text()) if STATUS.exists() else None
    return {**({"process": 1024 * int(kilobytes[1])} if kilobytes else {}), **found}


def _gpus() -> list[str]:
    return [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices("GPU")]
