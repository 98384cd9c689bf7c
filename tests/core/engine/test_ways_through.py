"""Gradients follow every path through a `Compute`, or the phase is refused."""

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import DATA, Several, assert_as_plain, assert_same, plainly, train, update

from core import layers
from core.errors import ConfigurationError
from core.random import Rng
from core.task import Compute, Loss
from core.tracing import in_xla

COMPILED = list[bool]()  # whether XLA compiles it, at each trace of a loss


class Two(Several):
    """`one` computes by `a`, `two` by what each case says."""

    def __init__(self, *, rng):
        super().__init__()
        self.a, self.b = (layers.Linear(3, 3, rng=rng.fold(name)) for name in "ab")

    def trains(self):
        return self.a

    def two(self, batch, rng):
        return {"v": tf.tanh(self.a(2.0 * batch["x"]))}

    def phases(self):
        one = Compute("one", lambda batch, _: {"u": tf.tanh(self.a(batch["x"]))})
        return [one, Compute("two", self.two), update("a", self.loss, self.trains(), through="two")]

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(tf.square(batch["u"] - batch["v"]), 1) + tf.square(batch["v"][:, 0] - batch["y"]))


class Chained(Two):
    def two(self, batch, rng):
        return {"v": tf.tanh(self.a(batch["u"]))}

    def loss(self, batch, rng):
        return Loss(tf.square(batch["v"][:, 0] - batch["y"]))


class ChainedByAnother(Chained):
    def two(self, batch, rng):
        return {"v": tf.tanh(self.b(batch["u"]))}


class ChainedOfBoth(ChainedByAnother):
    def trains(self):
        return [self.a, self.b]


@pytest.mark.parametrize(
    ("task", "reads"),
    [
        (Two, "the loss of phase `a` reads `u`"),
        (Chained, "`two` reads `u`"),
        (ChainedByAnother, "`two` reads `u`"),
        (ChainedOfBoth, "`two` reads `u`"),
    ],
)
def test_a_second_way_that_gradients_would_not_go_is_refused(task, reads):
    with pytest.raises(ConfigurationError, match=rf"{reads} as well, which comes from phase `one`.*in one `Compute`"):
        train(task, DATA, 1, 1)


class Advised(Two):
    """The error's advice: one `Compute` makes both."""

    def phases(self):
        return [Compute("one", self.one), update("a", self.loss, self.a, through="one")]

    def one(self, batch, rng):
        return {"u": tf.tanh(self.a(batch["x"])), **self.two(batch, rng)}


class Direct(Advised):
    """The same without a shared pass."""

    def phases(self):
        return [update("a", lambda b, rng: self.loss({**b, **self.one(b, rng)}, rng), self.a)]


@pytest.mark.long
def test_advice_of_the_error_has_both_gradients():
    found, expected = assert_as_plain(Advised, DATA, 2, 2), plainly(Direct, DATA)[0]
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-5, err_msg=path)


class Noting(Advised):
    """The same; it records whether XLA compiles its loss."""

    def phases(self):
        return [Compute("one", self.one), update("a", self.noting, self.a, through="one")]

    def noting(self, batch, rng):
        COMPILED.append(in_xla())
        return self.loss(batch, rng)


@pytest.mark.parametrize("replicas", [2, pytest.param(1, marks=pytest.mark.long)])
def test_a_loss_that_trains_what_makes_its_inputs_is_compiled_too(replicas):
    outcomes = []
    for compile in (False, ["a"]):
        COMPILED.clear()
        outcomes.append(train(Noting, DATA, replicas, 1, compile=compile))
        assert COMPILED[-1] == bool(compile)
    assert_same(*outcomes)


class ByNumbers(Two):
    """Integers and shapes from the same network have no gradient to lose."""

    def phases(self):
        one = Compute("one", lambda batch, _: {"u": tf.argmax(self.a(batch["x"]), 1), "w": self.a(batch["x"])})
        return [one, Compute("two", self.two), update("a", self.loss, self.a, through="two")]

    def loss(self, batch, rng):
        chosen = tf.gather(batch["v"], batch["u"], axis=1, batch_dims=1)
        return Loss(tf.square(chosen - batch["y"]) * float(batch["w"].shape[1]))


class AfterAnUpdate(Two):
    """A network updated before the pass is like any other."""

    def phases(self):
        return [
            update("early", lambda batch, _: Loss(tf.square(self.a(batch["x"])[:, 0] - 1.0)), self.a, every=2),
            Compute("two", self.two),
            update("a", lambda batch, _: Loss(tf.square(batch["v"][:, 0] - batch["y"])), self.a, through="two"),
        ]


class Relativistic(Two):
    """The critic passes on its output for real rows; only its loss depends on the generator `a`."""

    handed_on = "real"

    def phases(self):
        return [
            Compute("sample", lambda batch, _: {"v": tf.tanh(self.a(batch["x"]))}),
            update("b", self.b_loss, self.b),
            update("a", self.a_loss, self.a, through="sample"),
        ]

    def b_loss(self, batch, rng):
        score = {"real": self.b(3.0 * batch["x"])[:, 0], "fake": self.b(batch["v"])[:, 0]}
        gap = tf.math.softplus(score["fake"] - score["real"])
        return Loss(gap, outputs={"score": score[self.handed_on]})

    def a_loss(self, batch, rng):
        return Loss(tf.math.softplus(batch["score"] - self.b(batch["v"])[:, 0]))


class RelativisticToFakes(Relativistic):
    handed_on = "fake"


@pytest.mark.parametrize("replicas", [1, 2])
def test_output_that_depends_on_the_generator_is_refused(replicas):
    with pytest.raises(ConfigurationError, match=r"`a` reads `score` as well, which comes from phase `b` and `a/[bw]`"):
        train(RelativisticToFakes, DATA, replicas, 1)


@pytest.mark.long
@pytest.mark.parametrize("task", [ByNumbers, AfterAnUpdate, Relativistic])
def test_tasks_without_a_second_way_pass(task):
    assert_as_plain(task, DATA, 1, 1)


class Stacked(Two):
    """Two updates go through one pass of two networks; the first changes one of them."""

    lazy = 1

    def phases(self):
        one = Compute("one", lambda batch, _: {"v": tf.tanh(self.b(tf.tanh(self.a(batch["x"]))))})
        return [
            one,
            update("a", self.loss, self.a, through="one"),
            update("b", self.loss, self.b, through="one", every=self.lazy),
        ]

    def loss(self, batch, rng):
        return Loss(tf.square(batch["v"][:, 0] - batch["y"]))


@pytest.mark.parametrize("lazy", [1, 2])
def test_a_pass_of_a_network_that_has_been_updated_since_is_refused(lazy):
    with pytest.raises(ConfigurationError, match=r"phase `a` has updated a network of it in between.*before `a`"):
        train(type("Lazy", (Stacked,), {"lazy": lazy}), DATA, 1, 1)


def test_training_by_what_an_earlier_phase_made_asks_for_through():
    class Without(Stacked):
        def phases(self):
            one, a, _ = super().phases()
            return [one, update("a", a.loss, self.a)]

    with pytest.raises(ConfigurationError, match=r"trains `a/[bw]`.*only through `v`.*`through='one'`"):
        train(Without, DATA, 1, 1)


def test_through_names_one_compute():
    with pytest.raises(TypeError, match=r"`through` of phase `a` is \['one', 'two'\]; name one `Compute`"):
        update("a", lambda *_: None, layers.Linear(1, 1, rng=Rng.from_seed(0)), through=["one", "two"])
