"""One training step on a mesh has the same result as on one device."""

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from core.errors import ConfigurationError
from core.layers import Linear
from core.optimizers import adafactor, adamw, chain, clip_by_global_norm, ema, sgd
from core.parallel.mesh.plan import mesh
from core.task import ONE_DEVICE, Compute
from core.testing import Run, assemble, on_virtual_cpus, on_virtual_mesh
from models.classifiers.mlp import MlpClassifier

LESS_TELLING = [(1, (1, 2)), (2, (2, 1))]  # microbatches, mesh
SLOTS = [("net/layers/0/w", "batch,model"), ("net/layers/1/w", "model,batch")]
LAYOUTS = [("net/layers/0/?", "...,model"), ("net/layers/1/w", "model,-")]
ROWS = 16


def make(*, rng):
    optimizer = chain(clip_by_global_norm(0.5), adamw(1e-2), ema(0.9))
    return MlpClassifier(sizes=[64, 32, 10], dropout=0.2, optimizer=optimizer, rng=rng)


@pytest.fixture(scope="module")
def batch():
    random = np.random.RandomState(0)
    return {"image": random.rand(ROWS, 8, 8, 1).astype("f4"), "label": random.randint(0, 10, ROWS).astype("i4")}


@pytest.fixture(scope="module")
def expected(batch):
    return Run(assemble(make, on_virtual_cpus(1)), batch).train(20)


def assert_same(outcome, expected):
    for found, values, tolerance in (
        (outcome.variables, expected.variables, 1e-5),
        (outcome.figures, expected.figures, 1e-6),
        (outcome.norms, expected.norms, 1e-5),
    ):
        assert found.keys() == values.keys()
        for name, value in values.items():
            np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("rows", "parts", "microbatches", "slots"),
    [(2, 2, 2, SLOTS), *(pytest.param(*sizes, n, (), marks=pytest.mark.long) for n, sizes in LESS_TELLING)],
)
def test_twenty_steps_are_those_of_one_device(rows, parts, microbatches, slots, batch, expected):
    """With dropout, clipping, AdamW and an average of the weights; slots sharded along the batch change no number."""
    assembly = assemble(make, on_virtual_mesh(rows, parts, LAYOUTS, slot_layouts=slots))
    assert_same(Run(assembly, batch, microbatches=microbatches).train(20), expected)


def test_variables_and_slots_are_sharded_as_laid_out():
    assembly = assemble(make, on_virtual_mesh(2, 2, LAYOUTS, slot_layouts=SLOTS[:1]))
    axes = {path: tuple(v.layout.sharding_specs) for path, v in assembly.variables.items()}
    whole = "unsharded"
    assert axes["task/net/layers/0/w"] == (whole, "model")
    assert axes["task/net/layers/0/b"] == ("model",)
    assert axes["task/net/layers/1/w"] == ("model", whole)
    assert axes["task/net/layers/1/b"] == (whole,)
    for slot in ("adamw/m", "adamw/v", "ema/average"):
        assert axes[f"optimizer/net/{slot}/layers/0/w"] == ("batch", "model")
        assert axes[f"optimizer/net/{slot}/layers/0/b"] == ("model",)
        assert axes[f"optimizer/net/{slot}/layers/1/w"] == ("model", whole)
    assert axes["optimizer/net/step"] == ()


def test_a_variable_takes_a_value_of_the_host():
    assembly = assemble(make, on_virtual_mesh(2, 2, LAYOUTS))
    variable, value = assembly.variables["task/net/layers/0/w"], np.arange(64 * 32).reshape(64, 32)
    variable.assign(value)
    np.testing.assert_array_equal(variable.numpy(), value)
    assert variable.layout.sharding_specs == ["unsharded", "model"]


@pytest.mark.parametrize(
    ("layouts", "slots", "says"),
    [
        ([("net/layers/2/w", "-,model")], [], "`mesh.layouts` has 'net/layers/2/w', which matches no variable"),
        ([("net/layers/1/w", "-,model")], [], "`mesh.model` is 3, which doesn't divide the 10 of `net/layers/1/w`"),
        ([], [("net/layers/0/w", "model")], "`mesh.slot_layouts` lays out 'net/layers/0/w' by 'model'"),
    ],
)
def test_layouts_that_do_not_fit_the_task_are_refused_before_anything_is_drawn(layouts, slots, says, monkeypatch):
    monkeypatch.setattr("core.parallel.mesh.variable.MeshVariable.__init__", None)
    with pytest.raises(ConfigurationError, match=says):
        assemble(make, on_virtual_mesh(1, 3, layouts, slot_layouts=slots))


def without_slots(*, rng):
    return MlpClassifier(sizes=[64, 32, 10], optimizer=sgd(1e-2), rng=rng)


def factored(*, rng):
    return MlpClassifier(sizes=[256, 128, 10], optimizer=adafactor(1e-2), rng=rng)


@pytest.mark.parametrize(
    ("task", "pattern", "layout", "says"),
    [
        (
            without_slots,
            "net/layers/0/w",
            "batch,-",
            "no variable that has a slot of its own shape. Correct it",
        ),
        (factored, "net/layers/0/w", "batch,-", "slot of its own shape. Did you mean `net/layers/1/w`?"),
    ],
)
def test_layouts_of_slots_that_lay_out_none_are_refused(task, pattern, layout, says):
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        assemble(task, on_virtual_mesh(2, 1, slot_layouts=[(pattern, layout)]))


class History(tf.Module):
    def __init__(self):
        super().__init__()
        self.seen = tf.Variable(tf.zeros([ROWS]), trainable=False)


class Remembering(MlpClassifier):
    def __init__(self, *, rng):
        super().__init__(sizes=[64, 10], optimizer=adamw(1e-2), rng=rng)
        self.history = History()

    def phases(self):
        return [Compute("seen", fn=lambda batch, rng: ({}, {}), state=self.history), *super().phases()]


class Apart(MlpClassifier):
    one_device = ("net",)

    def __init__(self, *, rng):
        super().__init__(sizes=[64, 10], optimizer=adamw(1e-2), rng=rng)


@pytest.mark.parametrize(
    ("task", "settings", "says"),
    [
        (make, {"placements": {"net": ONE_DEVICE}}, "`Experiment.placements` places `net`. On a mesh every device"),
        (make, {"one_device": ["net"]}, "`Experiment.one_device` names `net`. On a mesh every device"),
        (Apart, {}, "`Apart.one_device` names `net`. On a mesh every device"),
        (Remembering, {}, "phase `seen` of `Remembering` keeps history"),
    ],
)
def test_tasks_that_want_one_device_are_refused_before_anything_is_drawn(task, settings, says, monkeypatch):
    monkeypatch.setattr("core.parallel.mesh.variable.MeshVariable.__init__", None)
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        assemble(task, on_virtual_mesh(1, 2), **settings)


class Changing(MlpClassifier):
    """Makes its two networks in another order each time."""

    def __init__(self, *, rng, sizes, turns):
        super().__init__(sizes=[64, 10], optimizer=adamw(1e-2), rng=rng)
        networks = [("first", sizes[0]), ("second", sizes[1])]
        for name, size in networks if next(turns) % 2 else reversed(networks):
            setattr(self, name, Linear(*size, rng=rng))


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([(4, 4), (4, 4)], "`Changing` made `first/b` where it made another before. On a mesh all is made twice"),
        ([(4, 4), (4, 8)], "made a variable of shape [4, 8] where it made `first/w` [4, 4] before. On a mesh all"),
    ],
    ids=["equal shapes", "other shapes"],
)
def test_a_task_that_is_made_in_another_order_the_second_time_is_refused(sizes, says):
    def make(*, rng):
        return Changing(rng=rng, sizes=sizes, turns=turns)

    turns = itertools.count(1)
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        assemble(make, on_virtual_mesh(1, 2, [("first/?", "...,model")]))


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", True])
def test_sizes_are_counts(size):
    with pytest.raises(ConfigurationError, match="it counts devices: give 1 or more"):
        mesh(model=size)
