"""Saves in the background of training."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from core import checkpoint
from core.checkpoint import saves as module
from core.checkpoint import write
from core.checkpoint.manifest import described
from core.errors import CheckpointError
from core.testing import on_virtual_cpus, on_virtual_mesh
from tests.core.checkpoint_lab import fail, model, names, newest

NAMES = {"Identity", "Pack", "Select", "ShardedFilename", "StaticRegexFullMatch", "StringJoin"}
FILES = {"MergeV2Checkpoints", "ReadVariableOp", "RestoreV2", "SaveV2", *NAMES}  # the writer's operations from copies


@pytest.fixture
def held(monkeypatch):
    """Holds writers back until it is set."""
    released, write_parts = threading.Event(), module.write_parts

    def waiting(*arguments):
        assert released.wait(60)
        return write_parts(*arguments)

    monkeypatch.setattr(module, "write_parts", waiting)
    yield released
    released.set()


def is_writer():
    return threading.current_thread().name.startswith("checkpoint")


def begin(saves, variables, step):
    return saves.begin(variables, step=step, examples=32 * step, config_hash="c0")


def trained(place):
    """Makes variables of several types, and a function that changes all of them in place."""
    axes = {(8, 4): ("batch", "model")}
    scopes = {
        "one device": contextlib.nullcontext,
        "2 replicas": lambda: on_virtual_cpus(2).scope(),
        "mesh": lambda: on_virtual_mesh(2, 2).scope(lambda shape: axes.get(tuple(shape), ("-",) * len(shape))),
    }
    with scopes[place]():
        variables = {
            "dense": tf.Variable(tf.random.normal([300, 40], seed=1)),
            "cut": tf.Variable(tf.random.normal([8, 4], seed=2)),
            "half": tf.Variable(tf.cast(tf.random.normal([7], seed=3), tf.bfloat16)),
            "step": tf.Variable(3, dtype=tf.int64),
            "nan": tf.Variable([np.nan, 1.0]),
            "none": tf.Variable(tf.zeros([0, 3])),
        }

    def train():
        for variable in variables.values():
            variable.assign_add(tf.ones_like(variable.read_value()))
        if place == "one device":
            dense, (m, v) = variables["dense"], (tf.Variable(tf.zeros([300, 40])) for _ in range(2))
            one = tf.constant(1.0)
            tf.raw_ops.ResourceApplyAdam(
                var=dense.handle, m=m.handle, v=v.handle, beta1_power=0.5, beta2_power=0.5,
                lr=one, beta1=0.9, beta2=0.9, epsilon=1e-3, grad=tf.ones([300, 40]),
            )  # fmt: skip
            dense.scatter_nd_update([[0], [7]], tf.zeros([2, 40]))

    return variables, train


@pytest.mark.long
@pytest.mark.parametrize("place", ["one device", "2 replicas", "mesh"])
def test_checkpoint_holds_its_moment_though_training_continues(place, held, tmp_path):
    variables, train = trained(place)
    saves = checkpoint.Saves(tmp_path, keep=checkpoint.Keep(9), warn=fail)
    for step in (1, 2, 3):  # the second copy replaces the first
        held.clear()
        expected = {path: described(variable) for path, variable in variables.items()}
        begin(saves, variables, step)
        train()
        assert saves.busy
        held.set()
        saves.settle()
        train()
        assert newest(tmp_path).step == step
        assert newest(tmp_path).variables == expected
        changed = {path for path, variable in variables.items() if described(variable) != expected[path]}
        assert changed == {*variables} - {"none", "nan"} | ({"nan"} & changed)


def test_a_second_save_waits_for_the_first(held, tmp_path):
    saves, second = checkpoint.Saves(tmp_path, warn=fail), threading.Event()
    begin(saves, model(1), 1)

    def begin_another():
        begin(saves, model(2), 2)
        second.set()

    thread = threading.Thread(target=begin_another)
    thread.start()
    assert not second.wait(0.2)
    assert names(tmp_path) == [".tmp-step-000000001"]
    held.set()
    thread.join(60)
    saves.settle()
    assert names(tmp_path) == ["step-000000001", "step-000000002"]


def test_failed_write_is_reported_once_at_the_next_chunk_end(held, tmp_path, monkeypatch):
    saves = checkpoint.Saves(tmp_path, warn=fail)
    held.set()
    begin(saves, model(), 1)
    saves.settle()
    monkeypatch.setattr(write, "seal", lambda file: (tmp_path / "gone" / file.name).stat())
    begin(saves, model(), 2)
    while saves.busy:
        pass
    with pytest.raises(CheckpointError, match=r"step 2 could not be written to .*No such file.*from before are"):
        saves.go_on()
    saves.settle()
    assert names(tmp_path) == ["step-000000001"]


@pytest.mark.parametrize("place", ["one device", "mesh"])
def test_checkpoint_that_comes_back_as_something_else_is_none(place, tmp_path, monkeypatch):
    variables, _ = trained(place)
    real = write.read_part

    def flipped(prefix, path, copy, box):
        value = real(prefix, path, copy, box)
        return -value if path == "cut" else value

    monkeypatch.setattr(write, "read_part", flipped)
    saves = checkpoint.Saves(tmp_path, warn=fail)
    begin(saves, variables, 1)
    with pytest.raises(CheckpointError, match="`cut` came back from the disk with other bytes than were written"):
        saves.settle()
    assert names(tmp_path) == []


@pytest.mark.parametrize("ended", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("fails", [False, True])
def test_error_that_ends_the_loop_waits_for_the_writer_and_stays_what_it_was(ended, fails, held, tmp_path, monkeypatch):
    told = []
    saves = checkpoint.Saves(tmp_path, warn=told.append)
    if fails:
        monkeypatch.setattr(write, "seal", lambda file: (tmp_path / "gone").stat())

    def fail_meanwhile():
        with saves.settled():
            begin(saves, model(), 1)
            threading.Timer(0.1, held.set).start()
            raise ended

    with pytest.raises(ended):
        fail_meanwhile()
    assert ("step-000000001" in names(tmp_path)) is not fails
    assert [text[:39] for text in told] == ["The checkpoint of step 1 could not be w"] * fails


def test_extra_values_of_hooks_are_copied_when_the_save_begins(held, tmp_path):
    saves, kept = checkpoint.Saves(tmp_path, warn=fail), {"calls": [1]}
    saves.begin(model(), step=1, examples=1, config_hash="", extra=kept)
    kept["calls"].append(2)
    held.set()
    saves.settle()
    assert newest(tmp_path).extra["calls"] == [1]


def test_an_error_that_is_no_fault_of_the_disk_is_raised_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "seal", lambda file: 1 // 0)
    saves = checkpoint.Saves(tmp_path, warn=fail)
    begin(saves, model(), 1)
    with pytest.raises(ZeroDivisionError), saves.settled():
        saves.settle()  # and it isn't told a second time


@pytest.mark.parametrize("place", ["2 replicas", "mesh"])
def test_the_thread_that_writes_runs_nothing_but_what_reads_and_writes(place, tmp_path, monkeypatch):
    """TensorFlow reports each operation of a thread, including those of functions that it traces."""
    seen, put_together, write_parts = set(), module.put_together, module.write_parts

    def note(op_type, *_, **__):
        seen.add(tf.compat.as_str(op_type))

    def noted(function):
        def call(*arguments):
            assert is_writer()
            op_callbacks.add_op_callback(note)
            try:
                return function(*arguments)
            finally:
                op_callbacks.remove_op_callback(note)

        return call

    monkeypatch.setattr(module, "write_parts", noted(write_parts))
    monkeypatch.setattr(module, "put_together", noted(put_together))
    variables, _ = trained(place)
    saves = checkpoint.Saves(tmp_path, warn=fail)
    begin(saves, variables, 1)
    saves.settle()
    assert {"SaveV2", "RestoreV2"} <= seen <= FILES


def test_long_wait_is_reported(held, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONG_SECONDS", 0.01)
    saves, told = checkpoint.Saves(tmp_path, warn=fail), []
    begin(saves, model(), 1)

    def note(text):
        told.append(text)
        held.set()

    saves.settle(note)
    assert told == ["waiting until the checkpoint of step 1 is written"]
    held.clear()
    saves.warn = note  # the early save is the only warning
    begin(saves, model(), 2)
    begin(saves, model(), 3)
    saves.settle()
    assert told[1:] == [module.TOO_OFTEN]


def test_several_writers_agree_at_chunk_ends_and_the_first_completes_the_checkpoint(held, tmp_path, monkeypatch):
    """Two writers communicate through a barrier, each with its thread; one fails, both report it."""
    meeting, said = threading.Barrier(2, timeout=60), [None, None]

    def first_text_of(worker):
        def first_text(text):
            assert not is_writer(), "a collective in the thread that writes"
            said[worker] = text
            meeting.wait()
            found = next(filter(None, said), None)
            meeting.wait()
            return found

        return first_text

    ended = []

    def work(worker, directory):
        peers = checkpoint.Peers(worker, 2, first_text_of(worker))
        saves = checkpoint.Saves(directory, warn=fail, peers=peers)
        try:
            begin(saves, model() if worker == 0 else {}, 1)
            saves.settle()
            ended.append("whole")
        except CheckpointError as error:
            ended.append(str(error))

    def together(directory):
        threads = [threading.Thread(target=work, args=(worker, directory)) for worker in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    held.set()
    together(tmp_path)
    assert ended == ["whole"] * 2
    assert newest(tmp_path).step == 1
    ended.clear()
    (tmp_path / "file").touch()
    together(tmp_path / "file")
    assert len(ended) == 2
    assert ended[0] == ended[1]
    assert "worker 0: " in ended[0]
    ended.clear()
    write_parts = module.write_parts

    def full(temporary, copies, worker):
        if worker == 1:
            raise OSError(28, "No space left on device")
        return write_parts(temporary, copies, worker)

    monkeypatch.setattr(module, "write_parts", full)
    together(tmp_path / "full")
    assert len(ended) == 2
    assert ended[0] == ended[1]
    assert "worker 1: No space left on device" in ended[0]
    assert names(tmp_path / "full") == []
