"""Finds the first non-finite operation in steps of every kind: phases, custom gradients, loops, masks."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from core import layers
from core.engine import TrainStep, assemble
from core.module import Module, named_modules
from core.optimizers import sgd
from core.random import Rng
from core.task import Compute, Loss, Task, Update
from trainers.replay.capsule.find import find_bad
from trainers.replay.capsule.trail import Trail, variables_before

ROWS = {"x": tf.constant(np.linspace(0.5, 1.0, 12, dtype="float32").reshape(1, 6, 2))}


class Part(Module):
    def __init__(self, fn):
        super().__init__()
        self.w, self.fn = tf.Variable([1.0, 1.0], name="w"), fn

    def __call__(self, x):
        return self.fn(
            x * tf.cast(self.w, x.dtype)
        )  # the opposite order would read `w` with an operation that is recorded itself


class One(Task):
    """One update with the part's loss `fn`."""

    def __init__(self, fn):
        super().__init__()
        self.net = Part(fn)

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1))]

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(self.net(batch["x"]), 1))


class Gan(Task):
    """`d` judges the output of `made`, which is trained through it and due in every second step."""

    def __init__(self, made, every=1):
        super().__init__()
        self.g, self.d, self.every = Part(made), Part(tf.identity), every

    def phases(self):
        every = {"every": self.every}
        return [
            Compute("sample", lambda batch, rng: {"z": self.g(batch["x"])}, **every),
            Update("d", loss=self.judged, trains=self.d, optimizer=sgd(0.1), **every),
            Update("g", loss=self.judged, trains=self.g, optimizer=sgd(0.1), through="sample", **every),
        ]

    def judged(self, batch, rng):
        return Loss(tf.reduce_sum(self.d(batch["z"]), 1))


def found_in(make_task, batch=ROWS, index=0, *, precision="float32", scale=1.0):
    assembly = assemble(make_task, tf.distribute.OneDeviceStrategy("CPU:0"))
    spec = {key: tf.TensorSpec(x.shape, x.dtype) for key, x in batch.items()}
    step = TrainStep(assembly, spec, seed=0, precision=precision)
    for loss_scale in step.loss_scales.values():
        loss_scale.scale.assign(scale)
    variables = {path.removeprefix("task/"): v for path, v in assembly.variables.items()}
    return find_bad(step, batch, index, Trail(variables, named_modules(assembly.task)))


def safe_root(x):
    """Is 0 at 0, and its gradient 0 times infinity."""
    return tf.where(x > 0.6, 1.0 / tf.where(x > 0.6, x - 0.6, x - x), 0.0)


@tf.custom_gradient
def own(x):
    return tf.identity(x), lambda dy: dy / (x - x)


def masked(x):
    """Masks half of a softmax with minus infinity, which is no fault, and divides by zero after it."""
    p = tf.nn.softmax(tf.where([True, False], x, -np.inf))
    return tf.math.reciprocal(p - p)


FNS = {
    "in a function that is traced": (tf.function(lambda x: tf.math.log(x - x)), "Log", ""),
    "in a loop": (
        lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.math.log(y)), (0, x - x))[1],
        "Log",
        "",
    ),
    "in a gradient of one's own": (own, "RealDiv", "dy / (x - x)"),
    "behind a mask": (masked, "Reciprocal", "tf.math.reciprocal"),
    "in a gradient alone": (lambda x: tf.sqrt(x - x), "SqrtGrad", "tf.sqrt(x - x)"),
    "in integers that overflow": (
        lambda x: x + tf.sqrt(tf.cast(tf.cast(1.2e9 * x, tf.int32) * 2, tf.float32)),
        "Sqrt",
        "",
    ),
    "in a type that is too narrow": (lambda x: tf.cast(tf.cast(x * 1e6, tf.float16), tf.float32), "Cast", ""),
}


def lines_of(operation):
    lines = operation.lines or operation.gradient_of.lines
    return [open(line.file).read().splitlines()[line.number - 1] for line in lines]


@pytest.mark.long
@pytest.mark.parametrize("name", FNS)
def test_the_operation_and_its_module_are_found(name):
    fn, kind, line = FNS[name]
    found = found_in(lambda: One(fn))
    assert (found.phase, found.origin.kind, found.origin.module) == ("net", kind, "net")
    assert any(line in each for each in lines_of(found.origin))
    assert variables_before(found.origin.gradient_of or found.origin) == ["net/w"]
    assert not found.features


def test_an_overflow_in_float16_is_found_where_only_that_type_overflows():
    def make():
        return Gan(lambda x: x * 6e4 * 2.0)

    found = found_in(make, precision="float16")
    assert (found.phase, found.what[0], found.origin.kind) == ("d", "its loss", "Mul")
    assert found_in(make) is None


def test_gradients_that_overflow_are_found_at_a_loss_scale_of_one_only():
    def make():
        return One(lambda x: tf.cast(x, tf.float32) * 2.0**20)

    found = found_in(make, precision="float16")
    assert found.what == ["the gradient of `net/w`"]
    assert "tf.cast(x, tf.float32)" in lines_of(found.origin)[0]
    assert found_in(make, precision="float16", scale=2.0) is None


def log_of_zero(row):
    zeros = row - row
    return tf.math.log(zeros)


def test_lines_that_autograph_makes_are_reported_as_written():
    found = found_in(lambda: One(lambda x: tf.map_fn(log_of_zero, x)))
    assert {line.file for line in found.origin.lines} == {__file__}
    assert lines_of(found.origin)[0].strip() == "return tf.math.log(zeros)"


@pytest.mark.parametrize("fn", [tf.identity, lambda x: tf.where(x > 0.0, x, -np.inf)])
def test_finite_step_has_nothing_to_be_found(fn):
    assert found_in(lambda: One(fn)) is None


def test_fault_before_and_behind_a_compute_is_found_in_the_update_that_suffers():
    found = found_in(lambda: Gan(lambda x: tf.math.log(x - x)))
    assert (found.phase, found.origin.kind, found.origin.module) == ("d", "Log", "g")
    found = found_in(lambda: Gan(lambda x: tf.sqrt(x - x)))
    assert (found.phase, found.origin.kind, found.origin.is_gradient) == ("g", "SqrtGrad", "Sqrt")
    assert found.origin.module == "g"
    assert "the new value of `g/w`" in found.what


class Keeps(One):
    """Keeps the output of `fn` for its examples, and returns it if `shown`."""

    def __init__(self, fn, shown):
        super().__init__(tf.identity)
        self.history, self.kept, self.shown = Module(), fn, shown
        self.history.last = tf.Variable(tf.zeros([6, 2]), trainable=False)

    def phases(self):
        return [Compute("keep", self.keep, state=self.history), *super().phases()]

    def keep(self, batch, rng):
        made = self.kept(batch["x"])
        return {"old": made if self.shown else self.history.last.read_value()}, {self.history.last.ref(): made}

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(self.net(batch["old"]), 1))


def test_history_that_is_spoilt_is_found_where_no_update_suffers_yet():
    found = found_in(lambda: Keeps(lambda x: tf.math.log(x - x), shown=False))
    assert (found.phase, found.origin.kind) == ("keep", "Log")
    assert found.what == ["the phase's history in `history/last`"]
    found = found_in(lambda: Keeps(lambda x: tf.math.log(x - x), shown=True))
    assert (found.phase, found.origin.kind, found.rows) == ("net", "Log", list(range(6)))
    assert found_in(lambda: Keeps(tf.identity, shown=False)) is None


class Weighed(Gan):
    """Gives its rows a negative weight; `g` is trained through `sample`, and `d` isn't."""

    def __init__(self, of):
        super().__init__(tf.identity)
        self.of, self.frozen = of, tuple({"d", "g"} - {of})

    def phases(self):
        return [phase for phase in super().phases() if phase.name in ("sample", self.of)]

    def judged(self, batch, rng):
        return Loss(tf.reduce_sum(self.d(batch["z"]), 1), weight=tf.fill([batch["z"].shape[0]], -1.0))


@pytest.mark.parametrize("of", ["d", "g"])
def test_weights_that_add_up_to_less_than_nothing_are_named(of):
    found = found_in(lambda: Weighed(of))
    assert (found.phase, found.what, found.origin) == (of, ["the sum of its weights, -6.0, which is a count"], None)


class Mixes(One):
    """Takes the logarithm of each row's distance from the least."""

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(0.1), mixes_rows=True)]

    def loss(self, batch, rng):
        y = tf.reduce_sum(self.net(batch["x"]), 1)
        return Loss(tf.math.log(y - tf.reduce_min(y)))


def test_rows_that_are_mixed_are_those_of_what_the_operation_made():
    rows = tf.gather(ROWS["x"], [3, 1, 4, 0, 5, 2], axis=1)
    assert found_in(lambda: Mixes(tf.identity), {"x": rows}).rows == [3]


class After(Task):
    """Takes the logarithm of zero, with weights written just before."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Part(tf.identity), Part(tf.identity)

    def phases(self):
        losses = {"a": lambda batch, rng: Loss(tf.reduce_sum(self.a(batch["x"]), 1)), "b": self.late}
        return [Update(name, loss=losses[name], trains=getattr(self, name), optimizer=sgd(0.1)) for name in losses]

    def late(self, batch, rng):
        y = self.a(batch["x"])
        return Loss(tf.reduce_sum(self.b(batch["x"]) * tf.math.log(y - y), 1))


def test_variable_is_known_again_once_it_was_written():
    found = found_in(After)
    assert (found.phase, found.origin.kind) == ("b", "Log")
    assert variables_before(found.origin) == ["a/w"]


def test_data_that_are_not_finite_are_named_and_no_operation():
    x = ROWS["x"].numpy()
    x[0, 4, 1] = np.nan
    found = found_in(lambda: One(tf.identity), {"x": tf.constant(x)})
    assert (found.origin, found.features, found.rows) == (None, ["x"], [4])


@pytest.mark.long
def test_function_that_tensorflow_traces_all_the_same_is_named_as_that():
    found = found_in(lambda: One(lambda x: tf.vectorized_map(lambda row: tf.math.log(row - row), x)))
    assert found.origin.name == "a function that TensorFlow traces"


class Drawn(One):
    """Takes the logarithm of 0 in randomly drawn rows."""

    def loss(self, batch, rng):
        y = self.net(batch["x"])
        return Loss(tf.reduce_sum(tf.math.log(tf.where(drawn(rng, y.shape[0])[:, tf.newaxis], 0.0, y)), 1))


def drawn(rng, rows):
    return rng.fold("drawn").rows.uniform(rows) < 0.4


def test_row_alone_draws_the_numbers_that_it_drew_among_others():
    batch = {"x": tf.reshape(tf.tile(ROWS["x"], [1, 2, 1]), [2, -1, 2])}
    rng = Rng.from_seed(0).fold("train").fold(tf.constant(3, tf.int64)).fold("net")
    expected = np.flatnonzero(drawn(rng, 12)).tolist()
    assert 1 < len(expected) < 8
    assert found_in(lambda: Drawn(tf.identity), batch, index=3).rows == expected


def test_phases_that_are_not_due_are_not_taken():
    assert found_in(lambda: Gan(lambda x: tf.math.log(x - x), every=2), index=1) is None
    assert found_in(lambda: Gan(lambda x: tf.math.log(x - x), every=2), index=2)


def test_layer_s_own_line_is_found_and_the_line_that_called_it():
    def normalising():
        norm = layers.LayerNorm(2, epsilon=1e-38)
        task = One(lambda x: norm(x - x))
        task.net.norm = norm
        return task

    found = found_in(normalising)
    lines = found.origin.lines or found.origin.gradient_of.lines
    assert "core/layers" in lines[0].file
    assert any(line.file == __file__ for line in lines)


def test_trail_keeps_no_tensor():
    trail, variable = Trail({}, {}), tf.Variable([1.0])
    with trail.following():
        x = tf.sqrt(variable) * 2.0
        assert trail.maker(x).kind == "Mul"
    alive = weakref.ref(x)
    del x
    gc.collect(1)
    assert alive() is None
