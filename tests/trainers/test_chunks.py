"""Chunks of a run: a thread may fetch the next one while the loop takes one."""

import contextlib
import dataclasses
import threading
from concurrent import futures

import numpy as np
import pytest

import trainers
from core.data import Stream
from core.distribution import backend_of
from core.errors import DataError
from core.parallel.mesh import MeshStrategy
from core.parallel.parameter_server import ServedStrategy
from tests.commands import run
from tests.trainers.command_lab import write_task
from tests.trainers.trainer_lab import Untrained, make
from trainers.hooks import Hook
from trainers.loop.input import Chunks


@pytest.fixture
def thread():
    with futures.ThreadPoolExecutor(1) as thread:
        yield thread


def test_chunks_come_in_order_from_any_thread(thread):
    chunks = Chunks(iter(range(100)))
    assert (next(chunks), chunks.peek(within=True), chunks.peek(within=False)) == (0, 0, 1)
    chunks.fetch_next(thread)  # it is there already
    assert next(chunks) == 1
    chunks.fetch_next(thread)
    chunks.fetch_next(thread)
    assert [chunks.peek(within=within) for within in (False, True, False)] == [2, 1, 2]
    assert [next(chunks) for _ in range(3)] == [2, 3, 4]


def test_chunk_is_fetched_while_another_is_taken(thread):
    asked, may = threading.Event(), threading.Event()

    def slow():
        yield 0
        asked.set()
        assert may.wait(60)
        yield 1

    chunks = Chunks(slow())
    assert next(chunks) == 0
    chunks.fetch_next(thread)
    assert asked.wait(60)  # though nothing waits for it
    may.set()
    assert next(chunks) == 1


def test_error_of_the_thread_is_raised_where_the_chunk_is_taken(thread):
    def spoiled():
        yield 0
        raise DataError("example 7 is spoiled")

    chunks = Chunks(spoiled())
    assert next(chunks) == 0
    chunks.fetch_next(thread)
    assert chunks.peek(within=True) == 0
    with pytest.raises(DataError, match="example 7"):
        next(chunks)


def test_chunks_handed_over_are_fetched_by_the_thread_that_takes_them(thread):
    by = []

    def noted():
        while True:
            by.append(threading.current_thread())
            yield len(by)

    chunks = Chunks(noted(), by_any_thread=False)
    for _ in range(3):
        next(chunks)
        chunks.fetch_next(thread)
    assert by == [threading.current_thread()] * 3


@pytest.mark.parametrize("kind", [MeshStrategy, ServedStrategy])
def test_mesh_and_servers_hand_chunks_over(kind, tmp_path, thread):
    input = make(tmp_path).input
    input.backend = backend_of(object.__new__(kind))
    chunks = input.chunks_from(0)
    chunks._chunks = iter([])
    chunks.fetch_next(thread)
    assert chunks._ahead is None


def test_closed_chunks_have_dropped_their_generator(thread):
    dropped = []

    def endless():
        try:
            yield from range(100)
        finally:
            dropped.append(True)

    chunks = Chunks(endless())
    next(chunks)
    chunks.fetch_next(thread)
    assert chunks.peek(within=False) == 1  # it is fetched
    chunks.close()
    thread.shutdown()
    assert dropped == [True]


@pytest.mark.parametrize("steps", [20, 0])
def test_call_from_python_closes_its_chunks_however_it_ends(steps, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(Chunks, "close", lambda self: closed.append(self))
    trainer = make(tmp_path)

    class Fails(Hook):
        def __call__(self, run):
            raise ValueError("not now")

    hooks = () if steps else (Fails(10),)
    settings = dataclasses.replace(trainer.settings, steps=steps or 20, log_every=10, hooks=hooks)
    with contextlib.nullcontext() if steps else pytest.raises(ValueError, match="not now"):
        trainers.train(trainer.experiment, settings, tmp_path / "mine", quiet=True)
    assert len(closed) == 1


def test_run_fetches_no_chunk_beyond_its_last_step(tmp_path):
    trainer, fetched = make(tmp_path, steps=25, log_every=None), []
    chunks_from = trainer.input.chunks_from

    def counted(*arguments, **options):
        for chunk in chunks_from(*arguments, **options):
            fetched.append(threading.current_thread().name)
            yield chunk

    trainer.input.chunks_from = lambda *arguments, **options: Chunks(counted(*arguments, **options))
    trainer.programs = Untrained(trainer.experiment)
    trainer.train()
    assert [name.split("_")[0] for name in fetched] == ["MainThread", "next chunk", "next chunk"]
    assert not any(thread.name.startswith("next chunk") for thread in threading.enumerate())


def test_unreadable_example_ends_the_run_after_the_steps_before(tmp_path):
    def spoiled(seed, epoch):
        for i in range(151):
            if i == 150:
                raise ValueError("this one is spoiled")
            yield {"x": np.zeros(3, "float32"), "y": np.float32(0.0)}

    trainer = make(tmp_path, source=Stream(spoiled), steps=50, chunk_steps=1, log_every=None)
    trainer.programs = Untrained(trainer.experiment)
    with pytest.raises(ValueError, match="this one is spoiled"):
        trainer.train()
    assert trainer.step == 150 // trainer.settings.global_batch_size
    assert not any(thread.name.startswith("next chunk") for thread in threading.enumerate())


SLOW = """
import os, signal, threading
from trainers.hooks import Hook

MADE, THIRD = [], threading.Event()

class Slow(ArraySource):
    def gather(self, indices):
        def wait(indices):
            MADE.append(0)
            if len(MADE) >= 3:
                THIRD.set()
                threading.Event().wait(100)
            return indices

        return super().gather(tf.ensure_shape(tf.numpy_function(wait, [indices], tf.int64), indices.shape))

@gin.configurable
def slow():
    return Slow({"x": np.ones([400, 3], "float32")}, name="slow")

@gin.configurable
class Stop(Hook):
    def __call__(self, run):
        assert THIRD.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_run_that_stops_while_its_source_is_slow_comes_to_its_end(tmp_path):
    """Python code makes a later chunk at that moment: Python stops that thread at exit, and would wait for it."""
    flags = [
        write_task(tmp_path, outside=SLOW),
        "--gin_param=Experiment.train_source = @slow()",
        "--gin_param=Trainer.chunk_steps = 1",
        "--gin_param=Trainer.hooks = [@Stop()]",
        "--gin_param=Stop.every = 1",
    ]
    done = run(*flags, "--workdir=run", cwd=tmp_path, timeout=60)
    assert done.returncode == 75, done.stderr
    assert "after step 2 of 20" in done.stderr
