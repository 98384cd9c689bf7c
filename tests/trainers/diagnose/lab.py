"""A training whose parts can each be slowed down, and the command that must name the slow one."""

import json

from tests.commands import run
from tests.trainers.command_lab import gin

PLANTED = '''
import time
import gin
import tensorflow as tf
from core.data import Source
from core.distribution.exchange import replica_here
from core.module import Module
from core.optimizers.transform import stateless
from core.task import Loss, Task, Update
from trainers.hooks import Hook

SIZE = 192


class Net(Module):
    def __init__(self, unused, rests):
        super().__init__()
        self.w, self.table = tf.Variable(tf.eye(SIZE), name="w"), tf.Variable(tf.zeros([1 + unused]), name="table")
        self.rests = rests

    def __call__(self, x):
        w = resting(tf.convert_to_tensor(self.w), *self.rests)
        return tf.tanh(x @ w) + self.table[0]


class Link(tf.distribute.ReductionToOneDevice):
    """Adds up as ever, and sleeps over it for each million of bytes: between CPUs of one machine nothing is slow."""

    seconds = 0.0

    def batch_reduce_implementation(self, reduce_op, pairs, options):
        sums = super().batch_reduce_implementation(reduce_op, pairs, options)
        size = sum(4e-6 * value.values[0].shape.num_elements() for value, _ in pairs)
        slow = [sleeping(x, self.seconds * size) for x in sums[0].values]
        return [type(sums[0])([tf.ensure_shape(x, sums[0].values[0].shape) for x in slow]), *sums[1:]]


tf.distribute.ReductionToOneDevice = Link


@gin.configurable
class Planted(Task):
    """Sleeps over each row, and on one replica; gradients of `unused` values are nothing but sent.

    What a test measures sleeps: how long that takes hangs neither on the machine nor on what else runs there.
    """

    def __init__(
        self, *, rng, row_seconds=0.0, unused=0, rests=(0.0, 0.0), slow_replica=None, seconds=0.0, link=0.0,
        optimizer=gin.REQUIRED,
    ):  # fmt: skip
        super().__init__()
        Link.seconds = link
        self.net, self.optimizer = Net(unused, rests), optimizer
        self.row_seconds, self.slow_replica, self.seconds = row_seconds, slow_replica, seconds

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        slow = self.slow_replica is not None and replica_here() == self.slow_replica
        x = sleeping(batch["x"], self.row_seconds * batch["x"].shape[0] + (self.seconds if slow else 0.0))
        return Loss(tf.reduce_mean(tf.square(self.net(tf.ensure_shape(x, batch["x"].shape))), 1))


def sleeping(x, seconds):
    """Returns `x`, later."""
    if not seconds:
        return x
    begun = tf.reshape(x, [-1])[:1]  # it sleeps once `x` is there
    slept = tf.numpy_function(lambda _: time.sleep(seconds), [begun], [], stateful=True)
    with tf.control_dependencies([slept]):
        return tf.identity(x)


def resting(x, forward, backward):
    """Returns `x`, with a sleep in either pass."""

    @tf.custom_gradient
    def rest(x):
        def back(dy):
            return tf.ensure_shape(sleeping(dy, backward), x.shape)

        return tf.ensure_shape(sleeping(x, forward), x.shape), back

    return rest(x)


@gin.configurable
def late(seconds=0.0):
    """Sleeps over the update of `w`."""

    def rule(gradients, params, step):
        slow = {path: seconds if path == "w" else 0.0 for path in gradients}
        return {path: -1e-6 * tf.ensure_shape(sleeping(g, slow[path]), g.shape) for path, g in gradients.items()}

    return stateless("late", rule)


@gin.configurable
class Sleepy(Source):
    """Sleeps over each chunk."""

    def __init__(self, seconds=0.0):
        super().__init__("sleepy", size=1000, place="a test")
        self.seconds = seconds

    @property
    def spec(self):
        return {"x": tf.TensorSpec([SIZE], tf.float32)}

    def gather(self, indices):
        x = tf.cast(sleeping(indices, self.seconds), tf.float32) / 1000.0
        return {"x": tf.repeat(x[:, None], SIZE, axis=1)}


@gin.configurable
class Nap(Hook):
    def __init__(self, every=None, seconds=0.0):
        super().__init__(every)
        self.seconds = seconds

    def __call__(self, run):
        time.sleep(self.seconds)
'''

CONFIGURATION = """
import planted
Experiment.task = @Planted
Experiment.train_source = @Sleepy()
Planted.optimizer = @sgd()
sgd.learning_rate = 1e-6
Trainer.steps = 100_000
Trainer.global_batch_size = 256
Trainer.log_every = 10_000
Trainer.checkpoint_every = None
"""


def diagnose(tmp_path, bindings, timeout=500):
    """Runs the command with these bindings; returns its text, and the same as JSON."""
    (tmp_path / "planted.py").write_text(PLANTED)
    flags = [gin(tmp_path, CONFIGURATION), gin(tmp_path, bindings, name="planted.gin")]
    done = run(*flags, "--mode=diagnose", "--workdir=run", cwd=tmp_path, timeout=timeout)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout, json.loads((tmp_path / "run" / "diagnosis.json").read_text())


def adds_up(point):
    return 0.9 < sum(point["parts"].values()) / point["step_seconds"] < 1.1
