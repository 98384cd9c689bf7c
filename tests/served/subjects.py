"""Tasks that train at one worker as on one device: configurations, each optimizer, and toys with further features."""

import functools

import gin
import numpy as np
import tensorflow as tf

from core import layers
from core.data import ArraySource
from core.metrics import AUC
from core.module import Module
from core.optimizers import adam, chain, ema, sgd
from core.task import Loss, Task, Update
from tests.commands import CONFIGS
from tests.trainers.test_mesh_configurations import SMALL
from tools.invariance.subjects import ROWS, Subject, configured, toy_batch
from tools.invariance.toys import Ragged, Synchronised
from trainers.experiment import Experiment

WORDS = 50
PARTS = 6  # of the optimizers: the time to trace a step grows faster than its phases
DIVIDED = "words, their gradients divided by their age"
NARROW_SLOTS = "rules with narrow slots"


class Words(Task):
    """Sparse gradients, `bfloat16`, a kernel over its norm, a metric with a state, a rare update and its average."""

    def __init__(self, *, rng, rare):
        super().__init__()
        self._rare = rare
        self.words = layers.Embedding(WORDS, 8, rng=rng.fold("words"))
        self.out = layers.SpectralNorm(layers.Linear(8, 1, rng=rng.fold("out")), rng=rng.fold("norm"))

    def phases(self):
        return [
            Update("words", loss=self.loss, trains=self.words, optimizer=sgd(0.5, momentum=0.9)),
            Update("out", loss=self.loss, trains=self.out, optimizer=self._rare, every=3),
        ]

    def loss(self, batch, rng):
        vectors = tf.reduce_mean(self.words(batch["ids"], dtype=tf.bfloat16), 1)
        logits = tf.cast(self.out(vectors), tf.float32)[:, 0]
        loss = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(batch["y"], tf.float32), logits)
        return Loss(loss, metrics={"auc": AUC.of(logits, batch["y"])})

    def evaluate(self, batch):
        return self.loss(batch, None)


class Parameters(Module):
    """Variables of all ranks, at the paths in the optimizers' table."""

    def __init__(self):
        super().__init__()
        random = np.random.RandomState(0)
        self.w, self.b = (tf.Variable(random.randn(*shape).astype("float32")) for shape in ([6, 4], [4]))
        self.scale = tf.Variable(1.0)


def part_of_the_rules(first):
    """Returns every `PARTS`th optimizer."""
    from tests.conformance.optimizer_rows import OPTIMIZERS  # with its peers: it takes long

    served = [row for row in OPTIMIZERS if row.part != "sophia"]  # servers refuse it by name
    return [row.make() for row in served[first::PARTS]]


def rules_with_narrow_slots():
    from tests.conformance.narrow_rows import NARROW

    return [row.make() for row in NARROW if row.part == "adamw"]


class Rules(Task):
    """Trains optimizers on separate parameters: least squares, one update after the other."""

    def __init__(self, *, rng, rules):
        super().__init__()
        self._rules = rules()
        self.nets = [Parameters() for _ in self._rules]

    def phases(self):
        return [
            Update(f"rule_{i}", loss=functools.partial(self._loss, net), trains=net, optimizer=rule)
            for i, (net, rule) in enumerate(zip(self.nets, self._rules, strict=True))
        ]

    def _loss(self, net, batch, rng):
        y = net.scale * tf.reduce_sum(tf.nn.tanh(tf.matmul(batch["x"], net.w) + net.b), 1)
        return Loss(tf.square(y - batch["y"]))

    def evaluate(self, batch):
        return self._loss(self.nets[0], batch, None)


def numbers(**shapes):
    """Returns a batch of random numbers."""
    random = np.random.RandomState(0)
    return {name: tf.constant(random.randn(ROWS, *shape), tf.float32) for name, shape in shapes.items()}


def words():
    """Returns a batch of a few words with answers."""
    random = np.random.RandomState(0)
    ids, y = random.randint(0, WORDS, [ROWS, 4]), random.randint(0, 2, [ROWS])
    return {"ids": tf.constant(ids, tf.int64), "y": tf.constant(y, tf.int64)}


TASKS = {
    **{
        name: (functools.partial(Rules, rules=rules), lambda: numbers(x=[6], y=[]))
        for name, rules in {
            **{f"rules_{i}": functools.partial(part_of_the_rules, i) for i in range(PARTS)},
            NARROW_SLOTS: rules_with_narrow_slots,
        }.items()
    },
    "ragged_dropout": (Ragged, lambda: toy_batch(ROWS)),
    "batch_norm": (Synchronised, lambda: toy_batch(ROWS)),
    "words": (functools.partial(Words, rare=chain(adam(0.01), ema(0.9))), words),
    DIVIDED: (functools.partial(Words, rare=sgd(0.1)), words),
}


def served_subject(name, scratch):
    """Returns the subject of a name; `scratch` is an empty folder."""
    if name not in TASKS:
        return configured(CONFIGS / f"{name}.gin", scratch, SMALL.get(name, ()))
    task, batch = TASKS[name][0], TASKS[name][1]()
    source = ArraySource({key: x.numpy() for key, x in batch.items()}, name=name)

    def experiment(strategy):
        gin.clear_config()  # of an earlier configuration
        return Experiment(task=task, train_source=source, strategy=strategy)

    return Subject(name, lambda strategy: experiment(strategy).assembly, batch, experiment=experiment)
