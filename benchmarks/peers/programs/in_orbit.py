"""Orbit's controller and standard trainer, with Sonnet's networks and Adam; the step compiled by XLA, or not."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import orbit
import sonnet as snt
import tensorflow as tf

from benchmarks.peers.programs.by_hand import batches
from benchmarks.peers.programs.work import main


def mlp():
    return snt.Sequential([snt.Flatten(), snt.nets.MLP([128, 10])])


def softmax():
    return snt.Sequential([snt.Flatten(), snt.Linear(10)])


def conv():
    def pool(x):
        return tf.nn.max_pool2d(x, 2, 2, "VALID")

    parts = []
    for i, channels in enumerate((32, 32, 64, 64, 128)):
        parts += [snt.Conv2D(channels, 3), tf.nn.relu, *([pool] if i in (0, 2) else [])]
    return snt.Sequential([*parts, lambda x: tf.reduce_mean(x, [1, 2]), snt.Linear(10)])


NETS = {"mlp": mlp, "softmax": softmax, "conv": conv}


class Training(orbit.StandardTrainer):
    """A trainer whose loop runs in the graph, over an iterator."""

    def __init__(self, work, *, jit):
        super().__init__(batches(work, work.order))
        self.net, self.optimizer = NETS[work.name](), snt.optimizers.Adam(1e-3)
        self.net(tf.zeros([1, *work.data["image"].shape[1:]]))
        # Sonnet orders its variables by layer, the bias first.
        names = sorted(work.weights)
        for variable, name in zip(self.net.trainable_variables, names, strict=True):
            variable.assign(work.weights[name])
        self.optimizer.apply([tf.zeros_like(v) for v in self.net.trainable_variables], self.net.trainable_variables)
        self.optimizer.step.assign(0)
        self.count, self.total = orbit.utils.create_global_step(), tf.Variable(0.0)
        self.compiled = tf.function(self.step, jit_compile=jit)

    def step(self, batch):
        with tf.GradientTape() as tape:
            logits = self.net(tf.cast(batch["image"], tf.float32) * (1.0 / 255.0))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["label"], logits=logits))
        variables = self.net.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    def train_loop_begin(self):
        self.total.assign(0.0)

    def train_step(self, iterator):
        self.total.assign_add(self.compiled(next(iterator)))
        self.count.assign_add(1)

    def train_loop_end(self):
        return {"total": self.total.read_value()}


def controlled(work, *, jit):
    work.chunk = work.log  # steps of one loop: it returns to Python as often as a metric line is due
    training = Training(work, jit=jit)
    controller = orbit.Controller(trainer=training, global_step=training.count, steps_per_loop=work.chunk)

    def advance():
        controller.train(int(training.count) + work.chunk)
        return training.total.read_value() / work.chunk

    return advance


if __name__ == "__main__":
    main({"plain": lambda work: controlled(work, jit=None), "jit": lambda work: controlled(work, jit=True)})
