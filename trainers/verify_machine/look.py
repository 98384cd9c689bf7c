"""`python -m trainers.verify_machine.look` prints TensorFlow's view of this machine as JSON."""

import json
import os
import platform

import tensorflow as tf

from core.checkpoint.versions import versions
from core.machine import machine_memory
from trainers.verify_machine.gpu_fit import advice, ask_driver

BUILT = ("cuda_version", "cudnn_version", "rocm_version")


def main() -> None:
    """Prints devices, versions, details, and what to install for the GPUs."""
    kind = next((kind for kind in ("TPU", "GPU") if tf.config.list_physical_devices(kind)), "CPU")
    devices = tf.config.list_physical_devices(kind)
    built = tf.sysconfig.get_build_info()
    details = [f"{platform.machine()}, {os.cpu_count()} cores, {machine_memory() / 2**30:.0f} GiB of memory"]
    for device in devices if kind == "GPU" else ():
        found = tf.config.experimental.get_device_details(device)
        details.append(f"{device.name}: {', '.join(f'{key} {value}' for key, value in sorted(found.items()))}")
    if kind == "GPU":
        rounds = tf.config.experimental.tensor_float_32_execution_enabled()
        details.append(f"TensorFloat-32 is {'on' if rounds else 'off'}")
    found = versions() | {name: built[name] for name in BUILT if built.get(name)}
    cards, driver_cuda = ask_driver()
    print(
        json.dumps(
            {
                "kind": kind,
                "devices": [x.name for x in devices],
                "versions": found,
                "details": details,
                "advice": advice(built, cards, driver_cuda, seen=len(devices) if kind == "GPU" else 0),
            }
        )
    )


if __name__ == "__main__":
    main()
