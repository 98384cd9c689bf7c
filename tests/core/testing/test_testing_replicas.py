"""Assertions over replicas, microbatches and collectives pass right tasks and catch common mistakes."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.errors import ConfigurationError
from core.optimizers import adamw, sgd
from core.random import Rng
from core.task import ONE_DEVICE, Compute, Loss, Task, Update
from core.task.statistics import Statistics
from core.testing import (
    Run,
    assemble,
    assert_accumulation_invariant,
    assert_collectives,
    assert_replica_invariant,
    invariance,
    on_virtual_cpus,
)
from tests import toys

ROWS = 8
RANDOM = np.random.RandomState(0)
BATCH = {"x": RANDOM.randn(ROWS, 3).astype("float32"), "y": RANDOM.randn(ROWS).astype("float32")}


class Small(toys.Line):
    """Has fewer operations to trace; subclasses plant one mistake each."""

    optimizer = adamw(0.01)


class Right(Small):
    """Has weights, a metric and noise by row."""

    def loss(self, batch, rng):
        noise = 0.1 * rng.fold("noise").rows.normal(*batch["x"].shape)
        error = self.error({**batch, "x": batch["x"] + noise})
        return Loss(tf.square(error), weight=tf.nn.relu(batch["y"]), metrics={"absolute": tf.abs(error)})


class SharedNoise(Small):
    def loss(self, batch, rng):
        noise = rng.fold("noise").normal(batch["x"].shape)
        return Loss(tf.square(self.error({**batch, "x": batch["x"] + noise})))


class MeanInside(Small):
    def loss(self, batch, rng):
        error = self.error(batch)
        return Loss(tf.square(error - tf.reduce_mean(error)))


class Normalised(Task):
    def __init__(self, *, rng):
        super().__init__()
        self.first, self.last = layers.Linear(3, 4, rng=rng.fold(0)), layers.Linear(4, 1, rng=rng.fold(1))
        self.norm, self.dropout = layers.BatchNorm(4, sync=True), layers.Dropout(0.2)

    def phases(self):
        # Not Adam: the bias before the normalisation has a gradient of rounding size only.
        return [Update("net", loss=self.loss, trains=self, optimizer=sgd(0.1), mixes_rows=True)]

    def loss(self, batch, rng):
        statistics = Statistics()
        x = tf.tanh(self.norm(self.first(batch["x"]), statistics=statistics))
        error = self.last(self.dropout(x, rng.fold("dropout")))[:, 0] - batch["y"]
        return Loss(tf.square(error), statistics=statistics)


class Unequal(Small):
    """Starts from values that differ by replica."""

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.seen = tf.Variable(0.0, trainable=False)
        for i, copy in enumerate(getattr(self.seen, "values", [])):
            copy.assign(float(i))


class Late(Small):
    """Differs by an update only: a metric shows it one step later."""

    def loss(self, batch, rng):
        whole = tf.cast(batch["y"].shape[0] == ROWS, tf.float32)
        error = self.error(batch)
        return Loss(tf.square(error) * whole + tf.stop_gradient(tf.square(error)) * (1.0 - whole) + 0.0 * error)


class Placed(Small):
    """Its features are made on one device."""

    frozen = ("first",)

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.first = layers.Linear(3, 3, rng=rng.fold("first"))

    def phases(self):
        features = Compute("features", lambda batch, rng: {"z": self.first(batch["x"])}, placement=ONE_DEVICE)
        return [features, Update("net", loss=self.head_loss, trains=self.net, optimizer=sgd(0.1))]

    def head_loss(self, batch, rng):
        return Loss(tf.square(self.net(batch["z"])[:, 0] - batch["y"]))


ALL = {**BATCH, "y": np.abs(BATCH["y"])}


@pytest.mark.long
def test_right_tasks_pass_for_any_number():
    assert_replica_invariant(Right, BATCH, (1, 2), steps=2)
    assert_accumulation_invariant(Right, BATCH, (1, 4), steps=2)


WRONG = {
    SharedNoise: "from step 0 on, so the forward passes differ",
    MeanInside: "`net/loss` differs from step 0 on",
    Late: "from step 1 on, while those before agree: updates differ",
}


@pytest.mark.long
@pytest.mark.parametrize("task", WRONG)
def test_tasks_that_depend_on_the_replicas_are_caught(task):
    with pytest.raises(AssertionError, match=WRONG[task]) as error:
        assert_replica_invariant(task, ALL, (1, 2), steps=3)
    for text in ("after 3 steps", "on 1 replica and", "on 2 replicas: a difference of", "rng.rows", "others differ"):
        assert text in str(error.value)
    assert "`" in str(error.value)


def test_a_task_that_depends_on_the_microbatches_is_caught():
    with pytest.raises(AssertionError, match=r"on 1 replica and .* on 1 replica and 2 microbatches: a difference of"):
        assert_accumulation_invariant(SharedNoise, BATCH, (1, 2), steps=2)


@pytest.mark.long
def test_the_largest_difference_is_the_one_that_is_named(monkeypatch):
    one, other = outcomes = [Run(assemble(SharedNoise, on_virtual_cpus(n)), BATCH).train(2) for n in (1, 2)]
    monkeypatch.setattr(invariance, "_trained", lambda task, batch, n, *_, **__: outcomes[n - 1])
    apart = {path: np.max(np.abs(x - other.variables[path])) for path, x in one.variables.items()}
    relative = {
        path: np.max(np.abs(x - other.variables[path]) / np.maximum(1, np.abs(x))) for path, x in one.variables.items()
    }
    worst = max(relative, key=relative.get)
    with pytest.raises(AssertionError, match=f"^`{worst}` after 2 steps .* a difference of {relative[worst]:.2g},"):
        assert_replica_invariant(SharedNoise, BATCH, (1, 2), steps=2)
    assert_replica_invariant(SharedNoise, BATCH, (1, 2), steps=2, tolerance=20 * max(apart.values()) + 10)


@pytest.mark.long
def test_figures_are_compared_too():
    class Counting(Small):
        def loss(self, batch, rng):
            good = super().loss(batch, rng)
            return good._replace(metrics={"rows": tf.fill(batch["y"].shape, float(batch["y"].shape[0]))})

    with pytest.raises(AssertionError, match=r"`net/rows` in step 0 is 8 on 1 replica and 4 on 2 replicas"):
        assert_replica_invariant(Counting, BATCH, (1, 2), steps=2)


def test_replicas_that_differ_are_named():
    with pytest.raises(AssertionError, match="replica 1 no longer holds the `seen` of replica 0: they differ by"):
        assert_replica_invariant(Unequal, BATCH, (1, 2), steps=1)


def test_mixed_rows_are_refused_for_microbatches_unless_the_phase_sees_the_whole_batch():
    class Mixing(MeanInside):
        microbatches = None

        def phases(self):
            (phase,) = super().phases()
            return [dataclasses.replace(phase, mixes_rows=True, microbatches=self.microbatches)]

    class Whole(Mixing):
        microbatches = 1

    with pytest.raises(AssertionError, match="phase `net` mixes rows"):
        assert_accumulation_invariant(Mixing, BATCH, (1, 2), steps=1)
    assert_accumulation_invariant(Whole, BATCH, (1, 2), steps=2)


def test_runs_that_can_t_be_compared_are_refused():
    made = Small(rng=Rng.from_seed(0))
    for says, task, batch, replicas in [
        ("is a finished `Small`", made, BATCH, (1, 2)),
        (r"`replicas` is \(2,\)", Small, BATCH, (2,)),
        (r"`replicas` is \(0, 1, 2\)", Small, BATCH, (0, 1, 2)),
        ("`batch` has 8 rows, which 3 replicas can't share evenly: give a multiple of 3", Small, BATCH, (3, 1)),
        ("lengths: {'x': 8, 'y': 7}", Small, {**BATCH, "y": BATCH["y"][1:]}, (1, 2)),
        ("lengths: {'x': 0}", Small, {"x": 1.0}, (1, 2)),
    ]:
        with pytest.raises(AssertionError, match=says):
            assert_replica_invariant(task, batch, replicas, steps=1)
    with pytest.raises(ConfigurationError, match="made outside the strategy's scope"):
        assert_replica_invariant(lambda rng: made, BATCH, (1, 2), steps=1)
    with pytest.raises(AssertionError, match="`steps` is 0"):
        assert_replica_invariant(Small, BATCH, steps=0)


def test_a_step_that_isn_t_finite_says_which():
    with pytest.raises(AssertionError, match=r"step 0 isn't finite on 1 replica; its figures are .*`net/loss` nan"):
        assert_replica_invariant(Small, {**BATCH, "x": BATCH["x"] * np.nan}, (1, 2), steps=2)


def test_adam_s_steps_of_rounding_are_hinted_at(monkeypatch):
    one = Run(assemble(Small, on_virtual_cpus(1)), BATCH).train(2)
    other = dataclasses.replace(one, replicas=2, variables={**one.variables, "net/b": one.variables["net/b"] + 0.1})
    monkeypatch.setattr(invariance, "_trained", lambda task, batch, n, *_, **__: (one, other)[n - 1])
    with pytest.raises(AssertionError, match=r"^`net/b` .* No loss or metric shows it. .* Adam and its like"):
        assert_replica_invariant(Small, BATCH, (1, 2), steps=2)


@pytest.mark.long
def test_a_network_on_one_device_is_made_there_once():
    class Alone(Placed):
        one_device = ("first",)

    assembly = assemble(Alone, on_virtual_cpus(2))
    assert isinstance(assembly.task.net.w, tf.distribute.DistributedValues)
    assert not isinstance(assembly.task.first.w, tf.distribute.DistributedValues)
    assert assembly.one_device_ids == {id(v) for v in (assembly.task.first.w, assembly.task.first.b)}
    assert_replica_invariant(Alone, BATCH, (1, 2), microbatches=2, steps=2)


@pytest.mark.long
def test_collectives_are_counted_by_phase_and_kind():
    assert_collectives(Small, BATCH, {"net": {"gradients": 1}}, microbatches=2)
    assert_collectives(Normalised, BATCH, {"net": {"gradients": 1, "statistics": 2}}, microbatches=2)
    assert_collectives(Placed, BATCH, {"features": {"values": 1}, "net": {"values": 1, "gradients": 1}})


def test_other_collectives_than_expected_are_caught():
    for says, expected in [
        (
            r"makes 0 of `values` in phase `net`, where 3 are expected; "
            r"2 of `statistics` in phase `net` \(float64, \d+ bytes; .*\), where 1 is expected; "
            r"1 of `gradients` in phase `net` \(.*\), where 0 are expected\. ",
            {"values": 3, "statistics": 1},
        ),
        ("names the kind `gradient`; .* Did you mean `gradients`", {"gradient": 1}),
    ]:
        with pytest.raises(AssertionError, match=says):
            assert_collectives(Normalised, BATCH, {"net": expected})
    with pytest.raises(AssertionError, match=r"names the phase `ent`; the task has `net`. Did you mean `net`"):
        assert_collectives(Small, BATCH, {"ent": {}})
    with pytest.raises(AssertionError, match="`replicas` is 1"):
        assert_collectives(Small, BATCH, {}, replicas=1)
