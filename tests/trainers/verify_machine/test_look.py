"""TensorFlow describes this machine for `trainers.verify_machine`."""

import json
import os

import tensorflow as tf

from trainers.verify_machine import look


def test_machine_is_described_in_one_line(capsys):
    look.main()
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "CPU"
    assert found["devices"] == [x.name for x in tf.config.list_physical_devices("CPU")]
    assert found["versions"]["tensorflow"] == tf.__version__
    assert f"{os.cpu_count()} cores" in found["details"][0]
