"""Sophia's estimates of curvature: the engine's second gradient, on replicas, in microbatches, resumed and refused."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import DATA, REAL, Gan, assert_as_plain, assert_same, train

from core import layers
from core.engine.accumulate import accumulate_gradients
from core.engine.loss_scale import LossScale
from core.engine.policies.measure_update import MeasuredUpdate
from core.errors import ConfigurationError
from core.losses import softmax_cross_entropy
from core.optimizers import Optimizer, chain, clip_by_global_norm, groups, lookahead, mechanic, sgd, sophia
from core.random import Rng
from core.task import Loss, Task, Update
from core.testing import Run, assemble, on_virtual_cpus, on_virtual_mesh
from models.classifiers.mlp import Mlp

WORDS = {**DATA, "word": np.arange(len(DATA["y"])) % 5}
RULE = sophia(0.05, gamma=0.5, estimate_every=2, weight_decay=0.0)


class Curved(Task):
    """Reads few rows of a table, draws noise for each row, and weighs its rows."""

    rule = RULE

    def __init__(self, *, rng):
        super().__init__()
        self.net, self.table = Mlp([3, 8, 1], rng=rng.fold("net")), layers.Embedding(2048, 3, rng=rng.fold("table"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=[self.net, self.table], optimizer=self.rule)]

    def loss(self, batch, rng):
        x = batch["x"] + self.table(batch["word"]) + 0.3 * rng.fold("noise").rows.normal(batch["x"].shape[0], 3)
        error = tf.square(tf.nn.tanh(self.net(x)[:, 0]) - batch["y"])
        return Loss(error, weight=1.0 + tf.cast(batch["word"], tf.float32))


class Grouped(Curved):
    rule = chain(clip_by_global_norm(1.0), groups({"1/*": sgd(0.1)}, otherwise=RULE))


class Drawn(Curved):
    """Classifies words. Estimates are by gradients on drawn labels; only some rows count."""

    rule = sophia(0.05, gamma=0.5, estimate_every=2, weight_decay=0.0, estimator="gauss_newton_bartlett")

    def phases(self):
        return [dataclasses.replace(phase, sampled_loss=self.sampled_loss) for phase in super().phases()]

    def logits(self, batch, rng):
        x = batch["x"] + 0.3 * rng.fold("noise").rows.normal(batch["x"].shape[0], 3)
        return self.net(x) * self.table(tf.range(5))[:, 0]

    def loss(self, batch, rng):
        entropy = softmax_cross_entropy(self.logits(batch, rng), batch["word"])
        return Loss(entropy, weight=tf.cast(batch["word"] > 0, tf.float32))

    def sampled_loss(self, batch, rng):
        logits = self.logits(batch, rng)
        return Loss(
            softmax_cross_entropy(logits, rng.fold("labels").rows.categorical(logits)),
            weight=self.loss(batch, rng).weight,
        )


@pytest.mark.parametrize(
    ("task", "replicas", "microbatches"),
    [
        (Grouped, 1, 2),
        *(pytest.param(*row, marks=pytest.mark.long) for row in ((Curved, 1, 1), (Curved, 2, 2), (Drawn, 2, 2))),
    ],
)
def test_step_is_that_of_the_specification(task, replicas, microbatches):
    """Compares weights and slots after three updates, of which the first and the third take an estimate."""
    found = assert_as_plain(task, WORDS, replicas, microbatches, steps=3)
    (slot,) = [x for path, x in found.items() if path.endswith("curvature/0/layers/0/w")]
    assert np.abs(slot).max() > 1e-4


@pytest.mark.long
@pytest.mark.parametrize("task", [Curved, Drawn])
def test_compiled_step_is_the_same(task):
    assert_same(*(train(task, WORDS, 1, 2, steps=3, compile=compile) for compile in (True, False)))


class Softmax(Task):
    """Classifies by one linear layer."""

    def __init__(self, *, rng):
        super().__init__()
        self.net, self.drawn = layers.Linear(3, 5, rng=rng), []

    def phases(self):
        rule = sophia(0.05, gamma=0.5, beta_2=0.9, estimate_every=2, estimator="gauss_newton_bartlett")
        return [Update("net", loss=self.loss, trains=self.net, optimizer=rule, sampled_loss=self.sampled_loss)]

    def loss(self, batch, rng):
        return Loss(softmax_cross_entropy(self.net(batch["x"]), batch["word"]))

    def sampled_loss(self, batch, rng):
        logits = self.net(batch["x"])
        return Loss(softmax_cross_entropy(logits, rng.fold("labels").rows.categorical(logits)))


@pytest.mark.parametrize(("replicas", "microbatches"), [(1, 1), pytest.param(2, 2, marks=pytest.mark.long)])
def test_gauss_newton_bartlett_is_that_of_the_paper(replicas, microbatches):
    """Follows algorithms 2 and 3 of Liu et al. (2024) in NumPy with float64, given the uniform numbers of the draws."""
    run = Run(assemble(Softmax, on_virtual_cpus(replicas), seed=1), WORDS, microbatches=microbatches, seed=7)
    x, word, rows = WORDS["x"].astype(np.float64), WORDS["word"], len(WORDS["y"])
    params = [run.variables[f"net/{name}"].numpy().astype(np.float64) for name in "wb"]
    m, h = [0.0, 0.0], [0.0, 0.0]

    def mean_gradients(labels):
        logits = x @ params[0] + params[1]
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        error = (p - np.eye(5)[labels]) / rows
        return [x.T @ error, error.sum(0)], logits

    for step in range(3):
        gradients, logits = mean_gradients(word)
        rng = run.step.rng_of(run.step.plans[0].phase, tf.constant(step, tf.int64)).fold("labels")
        noise = -np.log(-np.log(np.maximum(rng.rows.uniform(rows, 5).numpy().astype(np.float64), 2.0**-25)))
        if step % 2 == 0:
            estimates = [rows * g**2 for g in mean_gradients(np.argmax(logits + noise, 1))[0]]
            h = [0.9 * old + 0.1 * new for old, new in zip(h, estimates, strict=True)]
        m = [0.96 * old + 0.04 * g for old, g in zip(m, gradients, strict=True)]
        for i, (mean, curvature) in enumerate(zip(m, h, strict=True)):
            params[i] = params[i] - 0.05 * (np.clip(mean / np.maximum(0.5 * curvature, 1e-12), -1, 1) + 0.1 * params[i])
    found = run.train(3).variables
    for name, expected, slot in zip("wb", params, h, strict=True):
        np.testing.assert_allclose(found[f"net/{name}"], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[f"optimizer/net/sophia/curvature/{name}"], slot, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_estimate_in_a_narrow_precision_is_near_that_in_float32(precision):
    """The float16 loss is scaled, and its curvature with it."""
    task, values = Curved(rng=Rng.from_seed(0)), {key: tf.constant(x)[tf.newaxis] for key, x in WORDS.items()}
    variables, scale = {**task.net.parameters(), "table": task.table.w}, LossScale() if precision == "float16" else None
    if scale:
        scale.scale.assign(256.0)
    wide, narrow = (
        accumulate_gradients(
            task.loss, variables, values, Rng.from_seed(0), curvature_due=lambda: tf.constant(True), **settings
        )[0].mean_curvature()
        for settings in ({}, {"precision": precision, "loss_scale": scale})
    )
    for path, value in wide.items():
        largest = np.abs(value).max()
        assert largest > 0.0
        np.testing.assert_allclose(narrow[path], value, atol=0.06 * largest, err_msg=path)


def test_estimate_has_the_mean_of_the_diagonal():
    """A quadratic's diagonal is known; the estimate adds the other entries of a row with random signs."""
    hessian = np.array([[3.0, 0.5], [0.5, -1.0]], "f4")

    class Quadratic(Task):
        def __init__(self, *, rng):
            super().__init__()
            self.net = layers.Linear(2, 1, rng=rng)

        def phases(self):
            return [Update("net", loss=self.loss, trains=self.net, optimizer=sophia(0.0, beta_2=0.0, estimate_every=1))]

        def loss(self, batch, rng):
            w = self.net.w[:, 0]
            value = 0.5 * tf.reduce_sum(w * tf.linalg.matvec(hessian, w)) + 2.0 * tf.square(self.net.b[0])
            return Loss(value + 0.0 * batch["y"])

    seen, run = set(), Run(assemble(Quadratic, on_virtual_cpus(1), seed=1), DATA, microbatches=2, seed=7)
    for step in range(6):
        values = run.train(1, first=step).variables
        (w,) = [x for path, x in values.items() if path.endswith("curvature/w")]
        (b,) = [x for path, x in values.items() if path.endswith("curvature/b")]
        np.testing.assert_allclose(b, [4.0], rtol=1e-6)
        seen.add(tuple(np.round(w[:, 0], 5)))
    assert seen == {(3.5, -0.5), (2.5, -1.5)}


def test_measured_update_is_the_one_to_come_and_writes_nothing():
    """The hook that logs norms measures it."""
    w = tf.Variable([1.0, -2.0])
    optimizer = Optimizer(sophia(0.1, gamma=10.0, estimate_every=1), {"net/w": w})
    measured, gradient, estimate = MeasuredUpdate(optimizer), {"net/w": tf.constant([0.3, 0.1])}, {"net/w": tf.ones(2)}
    for each in (measured, optimizer):
        each.take_curvature(estimate)
        each.apply(gradient)
        if each is measured:
            assert not optimizer.slots["sophia/curvature"]["net/w"].numpy().any()
            np.testing.assert_array_equal(w, [1.0, -2.0])
    moved = np.linalg.norm(w.numpy() - [1.0, -2.0])
    np.testing.assert_allclose(measured.norms["update/net"], moved, rtol=1e-5)


def test_estimate_that_is_not_finite_is_skipped():
    w = tf.Variable([1.0, 1.0])
    optimizer = Optimizer(sophia(0.1, estimate_every=1), {"w": w})
    optimizer.take_curvature({"w": tf.constant([np.nan, 2.0])})
    np.testing.assert_allclose(optimizer.slots["sophia/curvature"]["w"], [0.0, 0.02], rtol=1e-5)


@pytest.mark.parametrize("wrap", [lookahead, mechanic], ids=["lookahead", "mechanic"])
def test_wrapper_that_hands_no_curvature_on_is_refused(wrap):
    with pytest.raises(ValueError, match=f"`sophia` reads the loss's curvature, but `{wrap.__name__}` around it"):
        Optimizer(wrap(RULE), {"w": tf.Variable(1.0)})


class Unweighted(Curved):
    settings: ClassVar[dict[str, Any]] = {"clip_examples": 1.0}

    def phases(self):
        (phase,) = super().phases()
        return [dataclasses.replace(phase, **self.settings)]

    def loss(self, batch, rng):
        return super().loss(batch, rng)._replace(weight=None)


class Mixing(Unweighted):
    settings: ClassVar[dict[str, Any]] = {"mixes_rows": True}


class Through(Gan):
    def phases(self):
        first, second, g = super().phases()
        return [first, second, dataclasses.replace(g, optimizer=RULE)]


@pytest.mark.parametrize(
    ("task", "data", "other"),
    [(Unweighted, WORDS, "clip_examples"), (Mixing, WORDS, "mixes_rows"), (Through, REAL, "through")],
)
def test_loss_without_a_second_gradient_is_refused(task, data, other):
    with pytest.raises(ConfigurationError, match=f"trains by `sophia`.* but has `{other}`"):
        train(task, data, 1, 1, steps=1)


class Undrawn(Drawn):
    def phases(self):
        return Curved.phases(self)


class Unlike(Drawn):
    def sampled_loss(self, batch, rng):
        return super().sampled_loss(batch, rng)._replace(weight=None)


class Unread(Drawn):
    def sampled_loss(self, batch, rng):
        return Loss(tf.square(batch["y"]), weight=batch["y"])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Undrawn, "by a loss on labels drawn from the model: give the phase one"),
        (Unlike, "`sampled_loss` of phase `net` returns other losses than its `loss`"),
        (Unread, "phase `net` reads `y`, but `loss` doesn't read it"),
    ],
)
def test_loss_on_drawn_labels_that_does_not_fit_is_refused(task, message):
    with pytest.raises(ConfigurationError, match=message):
        train(task, WORDS, 1, 1, steps=1)


def test_estimators_are_named_and_alike():
    with pytest.raises(ValueError, match="`estimator` is 'bartlett'"):
        sophia(0.1, estimator="bartlett")
    with pytest.raises(ValueError, match="give each `sophia` the same `estimator`"):
        chain(RULE, Drawn.rule)


def test_mesh_is_refused():
    with pytest.raises(
        ConfigurationError, match="phase `net` of `Curved` trains by `sophia`, which estimates the curv"
    ):
        assemble(Curved, on_virtual_mesh(2, 2))
