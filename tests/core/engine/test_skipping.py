"""A run that skips bad steps equals, to the bit, a run without these steps."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from chunk_lab import Training

from core import layers
from core.engine import NOT_FINITE, SPIKE
from core.engine.policies.recent_norms import WARM_UP
from core.module import Module
from core.optimizers import adam, chain, ema, sgd
from core.task import Compute, Loss, Task, Update
from core.task.statistics import Statistics
from tests import toys

STEPS, ROWS = 8, 8


class Kept(Module):
    def __init__(self):
        super().__init__()
        self.rows = tf.Variable(tf.zeros([ROWS, 3]), trainable=False, name="rows")


class Players(Task):
    """Keeps history and trains two networks in turn, then a third in every other step; each may be struck."""

    frozen = ()

    def __init__(self, *, rng):
        super().__init__()
        self.history = Kept()
        self.norm = layers.BatchNorm(3, sync=True, decay=0.5)
        self.d, self.g = (layers.Linear(3, 1, rng=rng.fold(name)) for name in "dg")
        self.head = layers.Linear(1, 1, rng=rng.fold("head"))

    def phases(self):
        rule = chain(adam(0.05), ema(0.5))
        return [
            Compute("recall", self.recall, state=self.history),
            Update("d", loss=self.d_loss, trains=[self.d, self.norm], optimizer=rule, mixes_rows=True),
            Update("g", loss=self.g_loss, trains=self.g, optimizer=sgd(0.05, momentum=0.5)),
            Update("head", loss=self.head_loss, trains=self.head, optimizer=sgd(0.05), every=2),
        ]

    def recall(self, batch, rng):
        return {"before": tf.identity(self.history.rows)}, {self.history.rows.ref(): batch["x"]}

    def d_loss(self, batch, rng):
        statistics = Statistics()
        x = self.norm(batch["x"] + 0.1 * batch["before"], statistics=statistics)
        x += 0.1 * rng.rows.normal(*batch["x"].shape)
        loss = tf.square(self.d(x)[:, 0] - 1.0) * batch["d_times"]
        return Loss(loss, outputs={"score": self.d(x)}, statistics=statistics)

    def g_loss(self, batch, rng):
        made = self.g(batch["x"])
        # The loss itself is finite, next to the root of zero, whose slope is infinite.
        return Loss(tf.square(self.d(batch["x"] * made)[:, 0]) + tf.sqrt(batch["g_root"] * tf.square(made[:, 0])))

    def head_loss(self, batch, rng):
        return Loss(tf.square(self.head(batch["score"])[:, 0] - 1.0) * batch["head_times"])


class WithoutHead(Players):
    frozen = ("head",)

    def phases(self):
        return super().phases()[:-1]


class Line(toys.Line):
    """Fits a line to a product whose features differ in scale."""

    optimizer = adam(0.05)

    def loss(self, batch, rng):
        y = batch["x"][:, 0] * batch["x"][:, 1]
        return Loss(tf.square(self.net(batch["x"])[:, 0] - y) * batch["d_times"])


def data(steps=STEPS, **struck):
    """Returns a batch per step; `struck` gives a feature another value at some steps, `{step: value}`."""
    random = np.random.RandomState(0)
    ones = {name: np.ones([steps, ROWS], np.float32) for name in ("d_times", "g_root", "head_times")}
    for name, values in struck.items():
        for step, value in values.items():
            ones[name][step, -1] = value
    return {"x": random.randn(steps, ROWS, 3).astype(np.float32), **ones}


def assert_same(found, expected):
    """Asserts that two trainings have the same variables and sums to the bit."""
    values = {**expected.variables, **expected.progress.variables}
    for trained in (found, expected):
        for path, variable in {**trained.variables, **trained.progress.variables}.items():
            for part in trained.strategy.experimental_local_results(variable):
                np.testing.assert_array_equal(part.numpy(), values[path].numpy(), err_msg=path)


@functools.cache
def players(task_class, skips, **how):
    return Training(task_class, data=data(), **how, **({"skips": [NOT_FINITE], "max_skips": 2} if skips else {}))


def assert_as_without(task_class, stacked, bad, **how):
    """Asserts that a run that skips its bad steps ends like one without them."""
    skipping, around = (players(task_class, skips, **how).restart(stacked) for skips in (True, False))
    assert skipping.take(0, STEPS) == -1
    assert skipping.skipping.skipped == len(bad)
    for begin, end in zip([0, *(step + 1 for step in bad)], [*bad, STEPS], strict=True):
        assert around.take(begin, end) == -1
    assert_same(skipping, around)
    return skipping.skipping.last


STRUCK = {
    "d": {"d_times": {3: np.nan}},
    "g": {"g_root": {2: 0.0}},
    "head": {"head_times": {4: np.inf}},
}


@pytest.mark.long
@pytest.mark.parametrize("phase", STRUCK)
def test_all_phases_of_a_step_are_left_out_whichever_is_bad(phase):
    ((feature, steps),) = STRUCK[phase].items()
    last = assert_as_without(Players, data(**{feature: steps}), list(steps), replicas=2, microbatches=2)
    assert (last.phase, last.kind) == (phase, NOT_FINITE)


def test_the_last_phase_of_several_is_not_copied():
    training = players(Players, True, replicas=2, microbatches=2)
    kept = {id(variable) for variable in training.skipping.undo.replicated}
    names = {path for path, variable in training.assembly.variables.items() if id(variable) in kept}
    parts = {path.split("/")[1] for path in names}
    assert parts == {"history", "d", "g", "norm"}
    assert "optimizer/d/ema/average/0/w" in names


def test_skips_in_a_row_are_limited_across_a_resume():
    stacked = data(d_times={2: np.nan, 3: np.nan, 5: np.nan, 6: np.nan, 7: np.nan})
    training = Training(Line, 1, data=stacked, skips=[NOT_FINITE], max_skips=2)
    undo = training.skipping.undo
    assert not [*undo.replicated, *undo.alone]  # one update needs no restore
    assert training.take(0, 6) == -1
    state = training.skipping.state()
    assert (state["in_a_row"], state["skipped"]) == (1, 3)
    again = training.restart(stacked)
    assert again.skipping.state()["skipped"] == 0
    again.skipping.load(state)
    assert again.take(6, STEPS) == 7
    assert again.skipping.state()["skipped"] == 4


@pytest.mark.long
def test_compiled_into_one_program_it_is_the_same():
    assert_as_without(WithoutHead, data(d_times={3: np.nan, 4: np.inf}), [3, 4], replicas=1, compile=True)


LONG = WARM_UP + 20
SETTINGS = {kind: {"skips": [kind], "max_skips": 2, "spike_factor": 10.0} for kind in (SPIKE, NOT_FINITE)}


@functools.cache
def traced(kind):
    return Training(Line, 1, data=data(LONG), **SETTINGS.get(kind, {}))


def skipping(kind, stacked):
    """Returns a training that begins anew and skips one kind of steps, or none."""
    return traced(kind).restart(stacked)


def with_spikes(*steps):
    """Returns data whose gradients of `Line` are 500 times as large at some steps."""
    stacked = data(LONG)
    stacked["d_times"][list(steps)] = 500.0
    return stacked


@pytest.mark.long
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_a_gradient_far_above_those_of_late_is_left_out_whatever_the_scale(scale):
    stacked = with_spikes(WARM_UP + 7)
    stacked["d_times"] *= np.float32(scale)
    training = skipping(SPIKE, stacked)
    assert training.take(0, LONG) == -1
    assert training.skipping.skipped == 1
    assert training.skipping.last == (WARM_UP + 7, "net", SPIKE)
    around = skipping(None, stacked)
    around.take(0, WARM_UP + 7)
    around.take(WARM_UP + 8, LONG)
    assert_same(training, around)


def test_at_the_beginning_nothing_is_a_spike():
    training = skipping(SPIKE, with_spikes(5, WARM_UP - 1))
    assert training.take(0, LONG) == -1
    assert training.skipping.skipped == 0


def test_a_spike_that_is_not_to_be_left_out_ends_the_chunk_and_so_does_what_is_not_finite():
    stacked = with_spikes(WARM_UP + 3)
    stacked["d_times"][WARM_UP + 9] = np.nan
    assert skipping(NOT_FINITE, stacked).take(0, LONG) == WARM_UP + 3
    training = skipping(SPIKE, stacked)
    assert training.take(0, LONG) == WARM_UP + 9
    assert training.skipping.last.kind == NOT_FINITE


def test_recent_norms_resume_from_a_checkpoint_to_the_bit():
    stacked = data(LONG)
    training = skipping(SPIKE, stacked)
    training.take(0, LONG)
    whole = training.skipping.state()
    training.restart(stacked).take(0, 50)
    state = json.loads(json.dumps(training.skipping.state()))
    training.restart(stacked, {path: v.numpy() for path, v in training.assembly.variables.items()})
    training.skipping.load(state)
    training.take(50, LONG)
    assert training.skipping.state() == whole
    norm, count = whole["late"]["net"]
    assert count == WARM_UP
    assert np.isfinite(norm)
