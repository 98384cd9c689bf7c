"""Steps that are left out: what is left is to the bit what a run has that never took them."""

import json

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.engine import NOT_FINITE, SPIKE, Progress, Skipping, TrainStep, make_chunk
from core.engine.spikes import WARM_UP
from core.module import Module
from core.optimizers import adam, chain, ema
from core.task import Compute, Loss, Task, Update
from core.task.statistics import Statistics
from core.testing import assemble, on_virtual_cpus

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
            Update("g", loss=self.g_loss, trains=self.g, optimizer=rule),
            Update("head", loss=self.head_loss, trains=self.head, optimizer=rule, every=2),
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
        # Beside the root of zero, whose slope is infinite, the loss itself is finite.
        return Loss(tf.square(self.d(batch["x"] * made)[:, 0]) + tf.sqrt(batch["g_root"] * tf.square(made[:, 0])))

    def head_loss(self, batch, rng):
        return Loss(tf.square(self.head(batch["score"])[:, 0] - 1.0) * batch["head_times"])


class Line(Task):
    """Fits a line to what is none."""

    def __init__(self, *, rng):
        super().__init__()
        self.net = layers.Linear(3, 1, rng=rng.fold("net"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=adam(0.05))]

    def loss(self, batch, rng):
        y = batch["x"][:, 0] * batch["x"][:, 1]
        return Loss(tf.square(self.net(batch["x"])[:, 0] - y) * batch["d_times"])


def data(steps=STEPS, **struck):
    """A batch for each step; `struck` gives a feature another value at some steps, `{step: value}`."""
    random = np.random.RandomState(0)
    ones = {name: np.ones([steps, ROWS], np.float32) for name in ("d_times", "g_root", "head_times")}
    for name, values in struck.items():
        for step, value in values.items():
            ones[name][step, -1] = value
    return {"x": random.randn(steps, ROWS, 3).astype(np.float32), **ones}


class Training:
    """A chunk of all steps, on some replicas; with settings, of steps that may be left out."""

    def __init__(self, task_class, stacked, *, replicas=1, microbatches=1, compile=False, **settings):
        strategy = on_virtual_cpus(replicas)
        self.assembly = assemble(task_class, strategy)
        steps, rows = len(stacked["x"]), ROWS // (microbatches * replicas)
        cut = {key: x.reshape(steps, microbatches, replicas, rows, *x.shape[2:]) for key, x in stacked.items()}

        def part(context):
            return {key: tf.constant(x[:, :, context.replica_id_in_sync_group]) for key, x in cut.items()}

        self.stacked = strategy.experimental_distribute_values_from_function(part)
        spec = {key: tf.TensorSpec([microbatches, rows, *x.shape[2:]], x.dtype) for key, x in stacked.items()}
        step = TrainStep(self.assembly, spec, seed=3, compile=compile)
        self.progress = Progress({name: x.sums_of_update for name, x in step.specs.items()}, strategy=strategy)
        self.skipping = Skipping(step, self.assembly, **settings) if settings else None
        chunk_spec = tf.nest.map_structure(tf.type_spec_from_value, self.stacked)
        self.chunk = make_chunk(step, chunk_spec, self.progress, self.skipping)

    def take(self, begin, end):
        self.chunk(self.stacked, tf.constant([0, begin, end], tf.int64))
        return int(self.progress.bad_step)

    def found(self):
        """All that is there, replicas checked against each other."""
        found = {f"sums/{i}": x.numpy() for i, x in enumerate(tf.nest.flatten(self.progress.read_sums()))}
        for path, variable in self.assembly.variables.items():
            first, *others = self.assembly.strategy.experimental_local_results(variable)
            found[path] = first.numpy()
            for other in others:
                np.testing.assert_array_equal(other.numpy(), first.numpy(), err_msg=path)
        return found


def assert_as_without(task_class, stacked, bad, **how):
    """A run that leaves out its bad steps ends as one that is led around them."""
    skipping = Training(task_class, stacked, **how, skips=[NOT_FINITE], max_skips=2)
    assert skipping.take(0, STEPS) == -1
    assert skipping.skipping.skipped == len(bad)
    around = Training(task_class, stacked, **how)
    for begin, end in zip([0, *(step + 1 for step in bad)], [*bad, STEPS], strict=True):
        assert around.take(begin, end) == -1
    expected, found = around.found(), skipping.found()
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
    return skipping.skipping.last


STRUCK = {
    "d": {"d_times": {3: np.nan}},
    "g": {"g_root": {2: 0.0}},
    "head": {"head_times": {4: np.inf}},
}
PLACES = [(1, 1, "d"), (1, 1, "head"), (2, 1, "g"), (4, 2, "head")]  # replicas, microbatches


@pytest.mark.parametrize(
    ("replicas", "microbatches", "phase"),
    [(2, 2, "g"), *(pytest.param(*place, marks=pytest.mark.long) for place in PLACES)],
)
def test_all_phases_of_a_step_are_left_out_whichever_is_bad(replicas, microbatches, phase):
    ((feature, steps),) = STRUCK[phase].items()
    how = {"replicas": replicas, "microbatches": microbatches}
    last = assert_as_without(Players, data(**{feature: steps}), list(steps), **how)
    assert (last.phase, last.kind) == (phase, NOT_FINITE)


def test_of_one_update_nothing_has_to_be_put_back():
    undo = Training(Line, data(), skips=[NOT_FINITE], max_skips=2).skipping.undo
    assert not [*undo.replicated, *undo.alone]


def test_the_last_phase_of_several_is_not_copied():
    training = Training(Players, data(), skips=[NOT_FINITE], max_skips=2)
    kept = {id(variable) for variable in training.skipping.undo.replicated}
    names = {path for path, variable in training.assembly.variables.items() if id(variable) in kept}
    parts = {path.split("/")[1] for path in names}
    assert parts == {"history", "d", "g", "norm"}
    assert "optimizer/g/ema/average/w" in names


def test_so_many_in_a_row_and_no_more():
    stacked = data(d_times={2: np.nan, 3: np.nan, 5: np.nan, 6: np.nan, 7: np.nan})
    training = Training(Line, stacked, skips=[NOT_FINITE], max_skips=2)
    assert training.take(0, 6) == -1
    state = training.skipping.state()
    assert (state["in_a_row"], state["skipped"]) == (1, 3)
    again = Training(Line, stacked, skips=[NOT_FINITE], max_skips=2)
    again.skipping.load(state)
    assert again.take(6, STEPS) == 7
    assert again.skipping.state()["skipped"] == 4


@pytest.mark.long
@pytest.mark.parametrize("task_class", [Line, Players])
def test_compiled_into_one_program_it_is_the_same(task_class):
    assert_as_without(task_class, data(d_times={3: np.nan, 4: np.inf}), [3, 4], compile=True)


LONG = WARM_UP + 20
SPIKES = {"skips": [SPIKE], "max_skips": 2, "spike_factor": 10.0}


def with_spikes(*steps):
    """Data by which the gradients of `Line` are 50 times as large at some steps."""
    stacked = data(LONG)
    stacked["d_times"][list(steps)] = 50.0
    return stacked


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_a_gradient_far_above_those_of_late_is_left_out_whatever_the_scale(scale):
    stacked = with_spikes(WARM_UP + 7)
    stacked["d_times"] *= np.float32(scale)
    training = Training(Line, stacked, **SPIKES)
    assert training.take(0, LONG) == -1
    assert training.skipping.skipped == 1
    assert training.skipping.last == (WARM_UP + 7, "net", SPIKE)
    around = Training(Line, stacked)
    around.take(0, WARM_UP + 7)
    around.take(WARM_UP + 8, LONG)
    expected, found = around.found(), training.found()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def test_at_the_beginning_nothing_is_a_spike():
    training = Training(Line, with_spikes(5, WARM_UP - 1), **SPIKES)
    assert training.take(0, LONG) == -1
    assert training.skipping.skipped == 0


def test_a_spike_that_is_not_to_be_left_out_ends_the_chunk_and_so_does_what_is_not_finite():
    stacked = with_spikes(WARM_UP + 3)
    stacked["d_times"][WARM_UP + 9] = np.nan
    training = Training(Line, stacked, **{**SPIKES, "skips": [NOT_FINITE]})
    assert training.take(0, LONG) == WARM_UP + 3
    training = Training(Line, stacked, **SPIKES)
    assert training.take(0, LONG) == WARM_UP + 9
    assert training.skipping.last.kind == NOT_FINITE


def test_what_is_of_late_goes_on_from_a_checkpoint_to_the_bit():
    stacked = data(LONG)
    whole, killed, again = (Training(Line, stacked, **SPIKES) for _ in range(3))
    whole.take(0, LONG)
    killed.take(0, 50)
    again.skipping.load(json.loads(json.dumps(killed.skipping.state())))
    for mine, its in zip(again.assembly.variables.values(), killed.assembly.variables.values(), strict=True):
        mine.assign(its)
    again.take(50, LONG)
    assert again.skipping.state() == whole.skipping.state()
    norm, count = whole.skipping.state()["late"]["net"]
    assert count == WARM_UP
    assert np.isfinite(norm)
