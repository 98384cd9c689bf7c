"""What a command leaves out of `import tensorflow` is there for who asks for it."""

import gc
import subprocess
import sys

import pytest

from tests.commands import CHECKOUT, CONFIGS, environment
from trainers.importing import without_collector

ASKED = """
import sys
from trainers.importing import only_what_is_used

with only_what_is_used():
    import tensorflow as tf
left_out = ("keras", "tensorflow._api.v2.compat.v1", "tensorflow._api.v2.compat.v2", "tensorflow._api.v2.lite", "jax")
assert not set(left_out) & set(sys.modules), [name for name in left_out if name in sys.modules]

import tensorflow.lite.python.convert_phase  # which has a package of the published one's name come in
assert tf.lite.TFLiteConverter and "Optimize" in dir(tf.lite)
assert tf.compat.v1.get_default_graph and tf.compat.v2.Variable is tf.Variable and len(dir(tf.compat.v1)) > 600
assert not hasattr(tf.lite, "nothing")
places = [place for place in tf.__path__ if place and "keras" in place]
assert len(places) == 2, tf.__path__
"""


def test_what_was_left_out_comes_when_it_is_asked_for():
    done = subprocess.run([sys.executable, "-c", ASKED], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


PEEK = """
import sys
import gin
from trainers.hooks import Hook

@gin.configurable
class Peek(Hook):
    def __call__(self, run):
        left_out = ("keras", "tensorflow._api.v2.compat.v1", "tensorflow._api.v2.lite", "jax")
        print("came in:", [name for name in left_out if sys.modules.get(name)])
"""


@pytest.mark.parametrize("config", ["digits_gan", "digits_convnet"])  # with random numbers, with convolutions
def test_no_step_of_a_run_asks_for_what_was_left_out(config, tmp_path):
    (tmp_path / "peek.py").write_text(PEEK)
    bound = ["import peek", "Trainer.hooks = [@Peek()]", "Peek.every = 2", "Trainer.steps = 2"]
    bound += [f"Trainer.{name}_every = None" for name in ("log", "evaluate", "checkpoint")]
    command = [sys.executable, "-m", "trainers.main", f"--gin_file={CONFIGS / config}.gin", "--workdir=run"]
    done = subprocess.run(
        [*command, *(f"--gin_param={text}" for text in bound)],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "came in: []" in done.stdout


def test_an_import_is_not_interrupted_by_the_collector():
    assert gc.isenabled()
    before = gc.get_freeze_count()
    try:
        with without_collector():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
