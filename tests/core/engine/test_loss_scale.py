"""Dynamic loss scaling against its rule and runs without overflow; long, as all cases share one transcription."""

import numpy as np
import pytest
import tensorflow as tf
from chunk_lab import Training
from engine_lab import Several, train

from core import layers
from core.distribution import Exchange, backend_of, one_device
from core.distribution.ledger import GRADIENTS
from core.engine import NOT_FINITE, TrainStep, accumulate_gradients, reduce_over_replicas
from core.engine.accumulate import Accumulated
from core.engine.loss_scale import LEAST, MOST, START, LossScale, next_scale
from core.engine.microbatch import Additive
from core.engine.progress import ALL_WELL
from core.errors import ConfigurationError
from core.losses.adversarial import r1
from core.optimizers import Optimizer, adam, chain, ema, sgd
from core.optimizers.norms import global_norm
from core.parallel.parameter_server import ServedStrategy
from core.random import Rng
from core.task import EVERY_REPLICA, ONE_DEVICE, Compute, Loss, Task, Update, all_rows
from core.task.loss import means
from core.task.statistics import Statistics
from core.testing import Run, assemble, on_virtual_mesh
from models import Mlp
from tests import toys

STEPS, ROWS = 12, 16
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(STEPS, ROWS, 3).astype("float32")


class Rule:
    """The rule of PyTorch's `GradScaler`, transcribed, with limits: backoff 0.5, growth 2 after a series of steps."""

    def __init__(self, scale=START, growth_steps=2000):
        self.scale, self.tracker, self.growth_steps = scale, 0, growth_steps

    def update(self, found_inf):
        """Returns whether the optimizer takes the step."""
        if found_inf:
            self.scale, self.tracker = max(self.scale * 0.5, LEAST), 0
            return False
        self.tracker += 1
        if self.tracker == self.growth_steps:
            self.scale, self.tracker = min(self.scale * 2.0, MOST), 0
        return True


def test_the_rule_is_that_of_grad_scaler(monkeypatch):
    monkeypatch.setattr("core.engine.loss_scale.GROWTH_STEPS", 3)
    for chance in (0.0, 0.1, 0.3, 1.0):
        rule, scale, good_steps = Rule(growth_steps=3), tf.constant(START), tf.constant(0, tf.int64)
        for found_inf in RANDOM.rand(60) < chance:
            rule.update(found_inf)
            scale, good_steps = next_scale(scale, good_steps, tf.constant(not found_inf), tf.constant(found_inf))
            assert (float(scale), int(good_steps)) == (rule.scale, rule.tracker)
    untouched = next_scale(tf.constant(8.0), tf.constant(2, tf.int64), tf.constant(False), tf.constant(False))
    assert [x.numpy() for x in untouched] == [8.0, 2]  # a bad step, or one without weight


class Steep(Task):
    """Its slope is `2 ** steep`, which the backward pass holds in float16, but not its loss."""

    frozen = ()

    def __init__(self, *, rng):
        super().__init__()
        self.norm = layers.BatchNorm(3, sync=True, decay=0.5)
        self.net = layers.Linear(3, 1, rng=rng.fold("net"))

    def phases(self):
        rule = chain(adam(0.05), ema(0.5))
        return [Update("net", loss=self.loss, trains=[self.net, self.norm], optimizer=rule, mixes_rows=True)]

    def loss(self, batch, rng):
        statistics = Statistics()
        made = tf.cast(self.net(self.norm(batch["x"], statistics=statistics))[:, 0], tf.float32)
        slope = tf.pow(2.0, tf.cast(batch["steep"], tf.float32))
        return Loss(tf.square(made - 1.0) * slope, statistics=statistics)


def steep(**steps):
    """Returns data in which the losses of these steps have this slope, as `_3=20`: 2 ** 20 in step 3."""
    found = np.zeros([STEPS, ROWS], np.int32)
    for step, exponent in steps.items():
        found[int(step[1:])] = exponent
    return {"x": X, "steep": found}


def float16(task, replicas=1, microbatches=1, **settings):
    return Training(task, replicas, microbatches=microbatches, precision="float16", **settings)


@pytest.mark.long
def test_a_step_that_overflows_writes_nothing_and_halves_the_scale():
    data = steep(_2=8, _3=8, _4=8, _7=7)
    training = float16(Steep, data=data)
    rule, seen = Rule(), []
    for step in range(STEPS):
        before = training.train(0, 0)
        scale, steps = float(before["loss_scale/net/scale"]), training.overflowed
        after = training.train(step, step + 1)
        assert int(training.progress.bad_step) == ALL_WELL
        overflowed = training.overflowed > steps
        assert rule.update(overflowed) is not overflowed
        assert (after["loss_scale/net/scale"], after["loss_scale/net/good_steps"]) == (rule.scale, rule.tracker)
        if overflowed:
            seen.append((step, scale))
            for path, value in before.items():
                if not path.startswith("loss_scale/"):
                    np.testing.assert_array_equal(after[path], value, err_msg=path)
    assert seen[:2] == [(2, START), (3, START / 2)]
    line = means(training.progress.read_sums()["net"])
    assert np.isfinite([*line.values()]).all()  # of the steps that were applied
    assert line["overflowed_steps"] == len(seen)


@pytest.mark.long
def test_a_gradient_that_overflows_at_scale_one_is_a_bad_step():
    training = float16(Steep, data=steep(_1=22))
    training.restart(values={**training.initial, "loss_scale/net/scale": np.float32(2.0)})
    assert training.take(0, 4) == ALL_WELL
    assert training.overflowed == 1  # which left a scale of one
    training.restart(values={**training.initial, "loss_scale/net/scale": np.float32(1.0)})
    assert training.take(0, 4) == 1
    assert training.overflowed == 0
    assert training.variables["loss_scale/net/scale"].numpy() == 1.0
    assert training.variables["loss_scale/net/good_steps"].numpy() == 1


@pytest.mark.long
def test_a_loss_that_is_not_finite_is_a_bad_step_at_any_scale():
    training = float16(Steep, data=steep(_1=127))
    assert training.take(0, 4) == 1
    assert training.overflowed == 0
    assert training.variables["loss_scale/net/scale"].numpy() == START


@pytest.mark.long
def test_steps_that_overflow_are_not_skipped_steps():
    data = steep(_1=8, _2=127, _3=8, _4=127, _5=127, _6=8)
    training = float16(Steep, data=data, skips=[NOT_FINITE], max_skips=2, spike_factor=10.0)
    assert training.take() == ALL_WELL
    assert training.skipping.skipped == 3
    assert training.skipping.state()["in_a_row"] == 0
    assert training.overflowed == 3
    norm, applied = training.skipping.state()["late"]["net"]
    assert np.isfinite(norm)
    assert applied == STEPS - 6 == training.variables["optimizer/net/step"].numpy()


@pytest.mark.long
def test_replicas_and_microbatches_agree_on_the_scale():
    data = steep(_2=8, _3=8, _7=9)
    training = float16(Steep, 2, 4, data=data)
    training.train()  # compares the replicas' bits
    assert training.overflowed >= 3
    assert training.variables["loss_scale/net/scale"].numpy() == START / 2**training.overflowed


@pytest.mark.long
def test_a_chunk_that_xla_compiles_takes_the_same_steps():
    data = steep(_2=8, _3=8, _7=9)
    expected, found = (float16(Steep, data=data, compile=what) for what in (False, True))
    assert found.step.whole
    scales = [training.train()["loss_scale/net/scale"] for training in (expected, found)]
    assert scales[0] == scales[1] < START
    assert expected.overflowed == found.overflowed


def test_gradients_of_float16_parameters_are_divided_in_float32():
    small = tf.constant([2.0**-10, 3.0 * 2.0**-20], tf.float16)
    slices = tf.IndexedSlices(small[:, tf.newaxis], tf.constant([0, 3]), tf.constant([4, 1]))
    found = Accumulated(Additive({"w": small, "table": slices}, {}, {}), True, tf.constant(2.0**20)).mean_gradients()
    np.testing.assert_array_equal(found["w"], np.float32([2.0**-30, 3.0 * 2.0**-40]))
    np.testing.assert_array_equal(found["table"].values[:, 0], found["w"])


def scaled_step(loss, optimizer, values, rng, exchange, loss_scale):
    """The step of a custom loop in `docs/fit-into-memory.md`; returns whether it overflowed."""
    accumulated, _ = accumulate_gradients(
        loss, optimizer.parameters, values, rng, exchange=exchange, precision="float16", loss_scale=loss_scale
    )
    gradients = reduce_over_replicas(accumulated, exchange).mean_gradients()  # divided by the scale
    norm = global_norm(gradients)
    overflowed, applied = loss_scale.overflows(norm), tf.math.is_finite(norm)
    optimizer.apply(gradients, apply_if=applied)
    loss_scale.advance(applied=applied, overflowed=overflowed)
    return overflowed


@pytest.mark.long
@pytest.mark.parametrize("weight", [None, 0.5])
def test_a_custom_loop_scales_its_loss(weight):
    """From scales that are too large, it takes as many steps more to come to the same weights."""
    values = {"x": tf.constant(EXACT["x"][np.newaxis]), "y": tf.constant(EXACT["y"][np.newaxis])}

    def trained(scale, steps):
        task, loss_scale, exchange = toys.Line(rng=Rng.from_seed(0)), LossScale(), Exchange(one_device("CPU:0"))
        optimizer = Optimizer(sgd(0.1), task.net.parameters())
        loss_scale.scale.assign(scale)

        def loss(batch, rng):
            error = wide(task.net(wide(batch["x"]))[:, 0]) - wide(batch["y"])
            half = tf.cast(error, tf.float16)  # whose gradient overflows from a scale of 2 ** 15 on
            slope = 2.0**5 * tf.square(wide(half))
            return Loss(slope, weight=None if weight is None else tf.fill(slope.shape, weight))

        for step in range(steps):
            scaled_step(loss, optimizer, values, Rng.from_seed(0).fold(step), exchange, loss_scale)
        return task.net.w.numpy(), float(loss_scale.scale), int(optimizer.step)

    w, scale, applied = trained(2.0**24, 20)
    assert scale < START
    assert applied == 20 - np.log2(2.0**24 / scale)
    expected, *_ = trained(scale, applied)
    np.testing.assert_array_equal(w, expected)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_scale_without_float16_is_refused(precision):
    with pytest.raises(ValueError, match=f"`loss_scale` with `precision='{precision}'`.*: leave `loss_scale` out"):
        accumulate_gradients(
            lambda batch, rng: Loss(batch["x"]), {}, {"x": tf.ones([1, 2])}, Rng.from_seed(0),
            precision=precision, loss_scale=LossScale(),
        )  # fmt: skip


# --- the same numbers as without a scale, in tasks that compute in float32 themselves --------------------------------


def wide(x):
    return tf.cast(x, tf.float32)


class Wide(Several):
    """Computes in float32, in phases of float16: there a scale is exact. `through` gets float64, which isn't cast."""

    weighted, through, places, mixes_rows, every, penalty = False, None, (EVERY_REPLICA, EVERY_REPLICA), False, 1, False

    def __init__(self, *, rng):
        super().__init__()
        self.g, self.d = Mlp([3, 8, 4], rng=rng.fold("g")), Mlp([4, 8, 1], rng=rng.fold("d"))

    def phases(self):
        sample, g = self.places
        how = {"optimizer": adam(0.01), "mixes_rows": self.mixes_rows, "every": self.every}
        if not self.through:
            return [Update("g", loss=self.loss, trains=[self.g, self.d], placement=g, **how)]
        how["through"] = "sample"
        made = Compute("sample", self.sample, placement=sample, every=self.every)
        return [made, Update("g", loss=self.loss, trains=self.g, placement=g, **how)]

    def sample(self, batch, rng):
        return {"made": tf.cast(self.g(wide(batch["x"])), tf.float64)}

    def loss(self, batch, rng):
        made = wide(batch["made"]) if self.through else self.g(wide(batch["x"]))
        if self.mixes_rows:
            made -= tf.reduce_mean(all_rows(made), 0)
        loss = tf.square(self.d(made)[:, 0] - wide(batch["y"]))
        if self.penalty:
            loss += r1(lambda x: self.d(self.g(x))[:, 0], wide(batch["x"]))
        return Loss(loss, weight=wide(batch["weight"]) if self.weighted else None)


class Words(Task):
    """Looks up few rows of a large table, whose gradient replicas exchange as slices."""

    def __init__(self, *, rng):
        super().__init__()
        self.table = layers.Embedding(2048, 4, rng=rng.fold("table"))

    def phases(self):
        return [Update("table", loss=self.loss, trains=self.table, optimizer=adam(0.1))]

    def loss(self, batch, rng):
        rows = tf.gather(self.table.w, batch["word"])  # the layer itself would compute in float16
        return Loss(tf.reduce_sum(tf.square(rows - 1.0), 1), weight=wide(batch["weight"]))


EXACT = {
    "x": RANDOM.randint(-8, 8, [ROWS, 3]).astype("float32") / 8.0,
    "y": RANDOM.randint(-8, 8, [ROWS]).astype("float32") / 8.0,
    "word": RANDOM.randint(0, 2048, [ROWS]),
    "weight": RANDOM.choice([0.0, 0.5, 1.0, 3.0], [ROWS]).astype("float32"),
}
APART = (ONE_DEVICE, EVERY_REPLICA)
FORMS = {
    "through one device, seldom": (Wide, {"through": True, "weighted": True, "places": APART, "every": 2}),
    "through, from one device": (Wide, {"through": True, "weighted": True, "places": APART[::-1]}),
    "through, summed in bfloat16": (Wide, {"through": True, "reduce_in": tf.bfloat16}),
    "sparse": (Words, {}),
    "second order": (Wide, {"penalty": True}),
    "mixing rows": (Wide, {"mixes_rows": True, "weighted": True}),
    "compiled, summed in bfloat16": (Wide, {"compile": True, "reduce_in": tf.bfloat16, "weighted": True}),
}


PLAIN = ("second order",)


@pytest.mark.parametrize("form", [pytest.param(x, marks=[] if x in PLAIN else [pytest.mark.long]) for x in FORMS])
def test_a_scale_changes_no_bit_in_float32(form):
    kind, how = FORMS[form]
    settings = {name: x for name, x in how.items() if name in ("compile", "reduce_in")}
    task = type(kind.__name__, (kind,), {name: x for name, x in how.items() if name not in settings})
    (ended, step), (plain, _) = (
        train(task, EXACT, 2, 2, precision=precision, **settings) for precision in ("float16", "float32")
    )
    found, expected = ended.variables, plain.variables
    sent = {entry.dtype for entry in step.exchange.ledger.of("g", GRADIENTS)}
    assert any("bfloat16" in dtype for dtype in sent) == ("reduce_in" in how)
    assert {path for path in found if path not in expected} == {
        f"loss_scale/{'table' if kind is Words else 'g'}/{name}" for name in ("scale", "good_steps")
    }
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


@pytest.mark.long
def test_a_scale_changes_no_bit_on_a_mesh():
    found, expected = (
        Run(assemble(Wide, on_virtual_mesh(2, 2, [("g/layers/0/w", "-,model")])), EXACT, precision=precision)
        .train(4)
        .variables
        for precision in ("float16", "float32")
    )
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
    assert found["loss_scale/g/good_steps"] == 4


def test_local_steps_are_refused():
    with pytest.raises(ConfigurationError, match=r"phase `net` computes in float16 .* with `Trainer.local_steps` they"):
        Training(toys.Line, 2, local_steps=2, precision="float16")


def test_servers_are_refused():
    strategy = object.__new__(ServedStrategy)
    strategy.max_staleness = strategy.divide_by_staleness = None
    step = object.__new__(TrainStep)
    step.backend = backend_of(strategy)
    with pytest.raises(ConfigurationError, match=r"phase `net` computes in float16 .* with parameter servers"):
        step._check_scalable(["net"])
