"""A command leaves parts of TensorFlow out of its import, and they come when they are asked for."""

import gc
import subprocess
import sys

from tests.commands import CONFIGS
from trainers.importing import without_collector

PEEK = """
import sys
import gin
from trainers.hooks import Hook

API = "tensorflow._api.v2"
LEFT_OUT = ["keras", f"{API}.compat.v1", f"{API}.compat.v2", f"{API}.lite", "jax"]

def there(names):
    return [name for name in names if sys.modules.get(name)]

print("imported:", there(LEFT_OUT))

@gin.configurable
class Peek(Hook):
    def __call__(self, run):
        print("asked for by a step:", there(set(LEFT_OUT) - {f"{API}.compat.v2"}))
        import tensorflow as tf
        import tensorflow.lite.python.convert_phase  # which imports a package of the published one's name
        assert tf.lite.TFLiteConverter and "Optimize" in dir(tf.lite)
        assert tf.compat.v1.get_default_graph and tf.compat.v2.Variable is tf.Variable and len(dir(tf.compat.v1)) > 600
        assert not hasattr(tf.lite, "nothing")
        places = [place for place in tf.__path__ if place and "keras" in place]
        assert len(places) == 2, tf.__path__
"""


def test_left_out_modules_come_when_they_are_asked_for_and_no_step_asks(tmp_path):
    """The network has convolutions, and random numbers in its dropout."""
    (tmp_path / "peek.py").write_text(PEEK)
    bound = ["import peek", "Trainer.hooks = [@Peek()]", "Peek.every = 2", "Trainer.steps = 2"]
    bound += [f"Trainer.{name}_every = None" for name in ("log", "evaluate", "checkpoint")]
    bound += ["Experiment.eval_source = None", "ConvNetClassifier.channels = [2]"]
    command = [sys.executable, "-m", "trainers.main", f"--gin_file={CONFIGS / 'digits_convnet'}.gin", "--workdir=run"]
    done = subprocess.run(
        [*command, *(f"--gin_param={text}" for text in bound)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "imported: []" in done.stdout
    assert "asked for by a step: []" in done.stdout


def test_collector_is_off_during_imports():
    assert gc.isenabled()
    before = gc.get_freeze_count()
    try:
        with without_collector():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
