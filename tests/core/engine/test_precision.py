"""Phases compute in the dtype of `TrainStep(precision=...)`, and sum in float32."""

import dataclasses
import functools
from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf

from core.errors import ConfigurationError
from core.graphs import bodies, everything
from core.layers import LSTM, Embedding, Linear, unroll
from core.module import Module
from core.optimizers import sgd
from core.random import Rng
from core.task import ONE_DEVICE, Compute, Loss, Task, Update
from core.testing import Run, assemble, on_virtual_cpus
from tests.core.engine.engine_lab import DATA, REAL, Gan, train
from tests.toys import Line

SEEN = {}  # dtypes by phase


class Words(Task):
    """Reads integers and floats, draws, and hands a value on."""

    def __init__(self, *, rng):
        super().__init__()
        self.table, self.net = Embedding(5, 3, rng=rng.fold("table")), Linear(3, 1, rng=rng.fold("net"))

    def phases(self):
        return [
            Compute("noise", self.noise),
            Update("net", loss=self.loss, trains=[self.table, self.net], optimizer=sgd(0.1)),
        ]

    def noise(self, batch, rng):
        SEEN["noise"] = [batch["x"].dtype, rng.normal([2]).dtype, self.table(batch["id"]).dtype]
        return {"noise": rng.rows.normal(batch["x"].shape[0], 3)}

    def loss(self, batch, rng):
        SEEN["net"] = [batch["x"].dtype, batch["noise"].dtype, batch["wide"].dtype, rng.rows.uniform(4).dtype]
        made = self.net(batch["x"] + self.table(batch["id"]) + batch["noise"])[:, 0]
        SEEN["made"] = made.dtype
        return Loss(tf.square(made - 1.0), metrics={"made": made})


class SgdGan(Gan):
    g_optimizer = sgd(0.1)  # Adam would magnify the rounding of small gradients


BATCH = {
    "x": np.ones([4, 3], "float32"),
    "wide": np.ones([4], "float64"),
    "id": np.arange(4, dtype="int32"),
}
NARROW, WIDE = tf.bfloat16, tf.float32


@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "noise", "net"),
    [("float32", WIDE, WIDE), ("bfloat16", NARROW, NARROW), ({"noise": "bfloat16"}, NARROW, WIDE)],
)
def test_a_phase_computes_in_its_dtype_and_reads_values_of_others_in_it(precision, noise, net):
    run = Run(assemble(Words, on_virtual_cpus(1)), BATCH, precision=precision)
    assert {"noise": [noise] * 3, "net": [net, net, tf.float64, net], "made": net} == SEEN
    sums = run(0).sums["net"]
    assert {x.dtype for x in tf.nest.flatten(sums)} == {tf.float32}
    assert {v.dtype for v in run.variables.values()} == {tf.float32, tf.int64}


class Many(Line):
    """Looks vectors up in a table that is large enough for sparse gradients, and keeps history."""

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.table, self.kept = Embedding(2048, 3, rng=rng.fold("table")), Module()
        self.other = Linear(3, 1, rng=rng.fold("other"))
        self.kept.last = tf.Variable(tf.zeros([16, 3]), trainable=False)

    def phases(self):
        (phase,) = super().phases()
        return [
            Compute("looked_up", self.look_up),
            Compute("history", self.history, state=self.kept),
            dataclasses.replace(phase, trains=[self.net, self.table]),
            Update("again", loss=self.again, trains=self.other, optimizer=sgd(0.1), every=2, placement=ONE_DEVICE),
        ]

    def look_up(self, batch, rng):
        return {"vector": self.table(tf.cast(tf.abs(batch["x"][:, 0]) * 100.0, tf.int32))}

    def history(self, batch, rng):
        return {"before": self.kept.last + 0.0}, {self.kept.last.ref(): batch["vector"]}

    def error(self, batch):
        own = self.table(tf.cast(tf.abs(batch["y"]) * 100.0, tf.int32))
        return self.net(batch["x"] + own + batch["vector"] + batch["before"])[:, 0] - batch["y"]

    def again(self, batch, rng):
        return Loss(tf.square(self.other(batch["x"] + batch["vector"])[:, 0] - batch["y"]))


NARROW_SAMPLE = {"sample": "bfloat16"}


@functools.cache
def alone(task, precision):
    """Returns the variables after training on one replica; by the precision's text, as settings can't be hashed."""
    settings = {"precision": NARROW_SAMPLE if precision == str(NARROW_SAMPLE) else precision}
    return train(task, DATA if task is Many else REAL, 1, 1, steps=4, **settings)[0].variables


ON_ONE_DEVICE = {"placements": {"sample": ONE_DEVICE, "g": ONE_DEVICE}}


@pytest.mark.parametrize(
    ("task", "data", "replicas", "microbatches", "settings"),
    [
        pytest.param(SgdGan, REAL, 2, 2, ON_ONE_DEVICE, marks=pytest.mark.long),
        pytest.param(SgdGan, REAL, 2, 2, {"precision": NARROW_SAMPLE}, marks=pytest.mark.long),
        pytest.param(SgdGan, REAL, 1, 2, {"compile": True}, marks=pytest.mark.long),
        (Many, DATA, 2, 2, {}),
    ],
)
def test_replicas_and_microbatches_give_the_same_numbers_to_rounding(task, data, replicas, microbatches, settings):
    narrow = {"steps": 4, "precision": "bfloat16", **settings}
    start = {
        path.removeprefix("task/"): v.numpy()
        for path, v in assemble(task, on_virtual_cpus(1), seed=1).variables.items()
    }
    expected = alone(task, str(narrow["precision"]))
    found, _ = train(task, data, replicas, microbatches, **narrow)
    for path in [path for path in expected if not path.startswith("optimizer")]:
        moved = np.linalg.norm(expected[path] - start[path])
        assert np.linalg.norm(found.variables[path] - expected[path]) <= 2.0**-6 * moved, path


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        ("bfloat8", "`Trainer.precision` is 'bfloat8'.*Did you mean `bfloat16`"),
        ("BFloat16", "`Trainer.precision` is 'BFloat16'.*Did you mean `bfloat16`"),
        ("int8", "`Trainer.precision` is 'int8'.*'float32', 'bfloat16', 'float16'"),
        (tf.bfloat16, "`Trainer.precision` is tf.bfloat16"),
        ({"net": "half"}, r"`Trainer.precision\['net'\]` is 'half'"),
        ({"nett": "bfloat16"}, "`Trainer.precision` names `nett`, but the phases.*Did you mean `net`"),
    ],
)
def test_unknown_dtypes_and_phases_are_refused(precision, message):
    with pytest.raises(ConfigurationError, match=message):
        Run(assemble(Words, on_virtual_cpus(1)), BATCH, precision=precision)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.5, 1.0), (-1.0, 1.0), (0.3, 0.7), (-3.0, -2.0), (0.9, 1.1)])
def test_uniform_draws_stay_in_their_range(dtype, low, high):
    rng = Rng.from_seed(3)
    wide, narrow = rng.uniform([20_000], low, high), rng._replace(dtype=dtype).uniform([20_000], low, high)
    assert narrow.dtype == dtype
    found = tf.cast(narrow, tf.float32)
    assert float(tf.reduce_min(found)) >= np.float32(low)
    assert float(tf.reduce_max(found)) < np.float32(high)
    digits = 8 if dtype == tf.bfloat16 else 11
    assert float(tf.reduce_max(tf.abs(found - wide))) <= 2.0 * max(abs(low), abs(high)) * 2.0**-digits


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_normal_draws_are_those_of_float32_rounded(dtype):
    rng = Rng.from_seed(3)
    other = rng._replace(dtype=dtype)
    for wide, narrow in [
        (rng.normal([64]), other.normal([64])),
        (rng.truncated_normal([64]), other.truncated_normal([64])),
        (rng.rows.normal(4, 3), other.rows.normal(4, 3)),
    ]:
        assert narrow.dtype == dtype
        assert bool(tf.reduce_all(narrow == tf.cast(wide, dtype)))
    assert other.wide.normal([2]).dtype == tf.float32


class Penalised(Line):
    """Its loss holds a gradient, which its own gradient differentiates again."""

    def loss(self, batch, rng):
        x = batch["x"]
        with tf.GradientTape() as tape:
            tape.watch(x)
            made = tf.square(self.net(x))
        return Loss(made[:, 0] + tf.reduce_sum(tf.square(tape.gradient(made, x)), 1))


class Recurrent(Line):
    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.core = LSTM(3, 3, rng=rng.fold("core"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=[self.net, self.core], optimizer=sgd(0.1))]

    def error(self, batch):
        made, _ = unroll(self.core, tf.stack([batch["x"]] * 4, 1))
        return self.net(made[:, -1])[:, 0] - batch["y"]


def casts_of_weights(run, *, in_loops):
    """Returns the number of casts of matrices to bfloat16, in the loops of a step or outside of all."""
    graph = run.traced.graph
    operations = [*everything(graph.get_operations())]
    if in_loops:
        operations = [inner for op in operations if "While" in op.type for inner in bodies(op)]
    reads = [op for op in operations if op.type == "Cast" and op.outputs[0].dtype == tf.bfloat16]
    return sum(op.inputs[0].op.type == "ReadVariableOp" for op in reads)


@pytest.mark.long
@pytest.mark.parametrize("task", [Line, Penalised, Recurrent])
def test_weights_are_cast_once_and_have_the_gradients_of_a_cast(task, monkeypatch):
    settings = {"microbatches": 4, "precision": "bfloat16"}
    run = Run(assemble(task, on_virtual_cpus(1), seed=1), DATA, **settings)
    assert casts_of_weights(run, in_loops=True) == 0
    assert casts_of_weights(run, in_loops=False) >= len(run.step.plans[0].access.casts) >= 1
    monkeypatch.setattr("core.engine.inspect_phase.noticing_casts", lambda: nullcontext([]))
    other = Run(assemble(task, on_virtual_cpus(1), seed=1), DATA, **settings)
    assert casts_of_weights(other, in_loops=True) >= 1
    found, expected = run.train(3).variables, other.train(3).variables
    for path, values in expected.items():
        assert np.array_equal(found[path], values), path
