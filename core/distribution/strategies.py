"""Strategies as gin files name them."""

import gin
import tensorflow as tf

from core.distribution.virtual import make_virtual_cpus
from core.errors import ConfigurationError


@gin.configurable
def one_device(device: str | None = None) -> tf.distribute.Strategy:
    """Everything on one device: `device` (`"CPU:0"`, `"GPU:1"`), or the first GPU, or the CPU where there is none."""
    available = [d.name.removeprefix("/physical_device:") for d in tf.config.list_physical_devices()]
    if device is None:
        device = next((name for name in available if name.startswith("GPU")), "CPU:0")
    elif device not in available:
        raise ConfigurationError(
            f"`one_device.device` is {device!r}, but this machine has {', '.join(available)}: name one of them, or "
            "leave it out to take the first GPU where there is one."
        )
    return tf.distribute.OneDeviceStrategy(device)


@gin.configurable
def mirrored(replicas: int | None = None) -> tf.distribute.Strategy:
    """Several replicas on this machine: GPUs where there are any, virtual CPU devices where there are none."""
    make_virtual_cpus(replicas or 2)
    devices = [f"CPU:{i}" for i in range(replicas or 2)]
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


STRATEGIES = ("one_device", "mirrored")  # what a gin file may bind to `Experiment.strategy`
