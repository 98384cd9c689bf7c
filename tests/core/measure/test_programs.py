"""Programs without one part of a step run all other parts, once per step."""

import collections
import functools
import mmap

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource, PerReplica, train_chunks
from core.engine import ALL_WELL, Progress, TrainStep, assemble, make_chunk
from core.layers import Linear
from core.measure import (
    Program,
    Whole,
    backward_program,
    collective_programs,
    forward_program,
    fractions,
    peak_memory,
    reset_peak_memory,
    turns_program,
)
from core.module import Module
from core.optimizers import sgd
from core.optimizers.transform import stateless
from core.random import Rng
from core.task import ONE_DEVICE, Compute, Loss, Task, Update, all_rows
from core.testing import on_virtual_cpus
from tests.toys import Line, points

STEPS = 3


class Counted(Task):
    """Counts its computations."""

    def __init__(self):
        super().__init__()
        self.net, self.seen = Module(), collections.Counter()
        self.net.w = tf.Variable(tf.ones([4]))

    def counted(self, name, x):
        def count(_):
            self.seen[name] += 1
            return np.float32(0.0)

        # Like any matrix product, it is pruned if its result isn't read.
        return x + tf.ensure_shape(tf.numpy_function(count, [x], tf.float32, stateful=False), [])

    def phases(self):
        def rule(gradients, params, step):
            return {path: self.counted("update", -0.1 * g) for path, g in gradients.items()}

        return [Update("net", loss=self.loss, trains=self.net, optimizer=stateless("counted", rule))]

    def loss(self, batch, rng):
        @tf.custom_gradient
        def passes(w):
            return self.counted("forward", w), lambda dy: self.counted("backward", dy)

        return Loss(tf.reduce_sum(batch["x"] * passes(tf.convert_to_tensor(self.net.w)), 1))


@functools.cache
def taken_apart(replicas, microbatches, make=Counted):
    """Returns the task, the pieces of its step, an input chunk, and the whole as a program."""
    strategy = on_virtual_cpus(replicas)
    source = ArraySource({"x": np.ones([8, 4], "float32")}, name="ones")
    settings = {"global_batch_size": 4, "microbatches": microbatches, "chunk_steps": STEPS, "seed": 0}
    chunks = PerReplica(lambda i: train_chunks(source, **settings, replicas=replicas, replica=i), strategy)
    assembly = assemble(make, strategy, one_device=make.one_device)
    rows = 4 // microbatches // replicas
    batch = {"x": tf.TensorSpec([microbatches, rows, 4], tf.float32)}
    step = TrainStep(assembly, batch, seed=0)
    progress = Progress({name: spec.sums_of_update for name, spec in step.specs.items()}, strategy=strategy)
    chunk = make_chunk(step, chunks.element_spec, progress).get_concrete_function()
    program = Program(chunk, progress, step.backend)
    whole = Whole(assembly, step, batch, chunks.element_spec, steps=STEPS, seed=0)
    return assembly.task, whole, next(iter(chunks)), program


def counts(task, program, stacked):
    task.seen.clear()
    assert program.seconds(stacked, STEPS) > 0
    assert int(program.progress.bad_step) == ALL_WELL
    return dict(task.seen)


def test_a_program_lacks_its_part_and_no_other():
    replicas, microbatches = 2, 2
    task, whole, stacked, program = taken_apart(replicas, microbatches)
    passes = STEPS * replicas * microbatches
    assert counts(task, forward_program(whole), stacked) == {"forward": passes}
    assert counts(task, backward_program(whole), stacked) == {"forward": passes, "backward": passes}
    for sent in collective_programs(whole).values():
        assert counts(task, sent, stacked) == {"forward": passes, "backward": passes}
    turns, exchange = turns_program(whole)
    assert counts(task, turns, stacked) == {"forward": passes, "backward": passes}
    assert len(exchange.seconds()) == replicas
    assert min(exchange.seconds()) > 0
    before = task.net.w.numpy().tolist()
    assert before == [1.0] * 4  # so far nothing was written
    assert counts(task, program, stacked) == {"forward": passes, "backward": passes, "update": STEPS * replicas}
    assert task.net.w.numpy().tolist() != before


class Noted(Line):
    """Notes the dtypes in which it computes."""

    def __init__(self):
        super().__init__(rng=Rng.from_seed(0))
        self.seen = collections.Counter()

    def error(self, batch):
        self.seen[batch["x"].dtype.name] += 1
        return super().error(batch)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_programs_compute_in_the_precision_of_the_step(precision):
    assembly, chunk = assemble(Noted, on_virtual_cpus(1)), {key: x[None, None] for key, x in points().items()}
    batch = {key: tf.TensorSpec(x.shape[1:], x.dtype) for key, x in chunk.items()}
    step = TrainStep(assembly, batch, seed=0, precision=precision)
    whole = Whole(
        assembly, step, batch, {key: tf.TensorSpec(x.shape, x.dtype) for key, x in chunk.items()}, steps=1, seed=0
    )
    seen = assembly.task.seen
    seen.clear()
    for program in (forward_program(whole), backward_program(whole), turns_program(whole)[0]):
        assert program.seconds(chunk, 1) > 0
    assert {*seen} == {precision}


def test_phases_are_heard_one_after_the_other():
    _, whole, _, _ = taken_apart(2, 2)
    assert list(collective_programs(whole)) == ["net"]
    silent, heard = whole.silent(), whole.silent("net")

    def summed(exchange):
        part = tf.function(lambda: exchange.run(lambda: exchange.sum(tf.constant(1.0), phase="net", what="x")))
        return float(whole.assembly.strategy.experimental_local_results(part())[0])

    assert (summed(silent), summed(heard)) == (1.0, 2.0)
    assert not silent.ledger.collectives


@pytest.mark.long
def test_replicas_that_take_turns_do_not_wait_for_each_other():
    _, whole, _, _ = taken_apart(2, 2)
    _, exchange = turns_program(whole)
    order = []

    def note(replica):
        order.append(int(replica))
        return np.float32(0.0)

    def passes():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        begun = tf.numpy_function(note, [replica], tf.float32, stateful=True)
        with tf.control_dependencies([begun]):
            return tf.numpy_function(note, [replica], tf.float32, stateful=True)

    function = tf.function(lambda: whole.assembly.strategy.experimental_local_results(exchange.run(passes)))
    for _ in range(3):
        function()
    assert order == 3 * [0, 0, 1, 1]


def test_memory_that_was_given_back_is_forgotten():
    size = 50 * 2**20
    reset_peak_memory()
    before = peak_memory()["process"]
    with mmap.mmap(-1, size) as held:  # an array's memory may stay in the allocator, for other arrays
        for page in range(0, size, mmap.PAGESIZE):
            held[page] = 1
        high = peak_memory()["process"]
    assert high > before + 0.8 * size
    reset_peak_memory()
    assert peak_memory()["process"] < high - 0.5 * size


def test_fractions_are_relative_to_the_interleaved_run():
    speed = iter([1.0, 1.0, 10.0, 10.0, 2.0, 2.0])  # of a machine that is busy in the second round
    whole, parts = fractions({"part": lambda: next(speed), "all": lambda: 3 * next(speed)}, of="all", most=3)
    assert (whole, parts) == (6.0, {"part": pytest.approx(1 / 3), "all": 1.0})


class Placed(Task):
    """Its generator is on one device, and its other phase mixes rows."""

    one_device = ("g",)

    def __init__(self):
        super().__init__()
        self.g, self.d = (Linear(4, 4, rng=Rng.from_seed(i)) for i in range(2))

    def phases(self):
        sample = Compute("sample", lambda batch, rng: {"made": self.g(batch["x"])}, placement=ONE_DEVICE)
        mixing = Update("d", loss=self.d_loss, trains=self.d, optimizer=sgd(0.1), mixes_rows=True)
        return [sample, mixing, Update("g", loss=self.g_loss, trains=self.g, optimizer=sgd(0.1), through="sample")]

    def d_loss(self, batch, rng):
        return Loss(tf.reduce_sum(tf.square(self.d(batch["made"]) - tf.reduce_mean(all_rows(batch["x"]), 0)), 1))

    def g_loss(self, batch, rng):
        return Loss(tf.reduce_sum(tf.square(self.d(batch["made"])), 1))


@pytest.mark.long
def test_phases_in_two_places_and_rows_that_mix_can_be_taken_apart():
    _, whole, stacked, program = taken_apart(2, 1, Placed)
    sent = collective_programs(whole)
    assert sorted(sent) == sorted({entry.phase for entry in whole.step.exchange.ledger.collectives})
    assert {"d", "g"} <= sent.keys()
    for each in (forward_program(whole), backward_program(whole), *sent.values(), turns_program(whole)[0], program):
        each.seconds(stacked, 2)
        assert int(each.progress.bad_step) == ALL_WELL
