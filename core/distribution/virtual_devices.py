"""Virtual CPU devices: several replicas on a machine without GPUs, for rehearsal."""

import tensorflow as tf

from core.distribution.early_variables import made_too_early
from core.errors import ConfigurationError

MOST = 256  # they share the cores: more of them test nothing new, and each is traced separately


def made_virtual_cpus() -> int:
    """Returns the number of CPU devices, as `make_virtual_cpus` left it."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    return len(tf.config.get_logical_device_configuration(cpu) or [None])


def make_virtual_cpus(count: int) -> None:
    """Makes virtual CPU devices until TensorFlow has at least `count`."""
    if count > MOST:
        raise ConfigurationError(
            f"{count} devices were asked for, without GPUs; virtual CPU devices are for rehearsal, and there are at "
            f"most {MOST} of them. Ask for fewer, or run on several machines (`multi_worker`)."
        )
    if (there := made_virtual_cpus()) >= count:
        return
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError:
        raise ConfigurationError(
            f"{count} CPU devices were asked for, but TensorFlow has started with {there}, and can't "
            f"be given more: {made_too_early()}"
        ) from None
