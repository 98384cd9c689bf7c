"""Strategies as gin files name them."""

import gin
import tensorflow as tf

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


STRATEGIES = ("one_device",)  # what a gin file may bind to `Experiment.strategy`
