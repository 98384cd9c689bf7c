"""Bad steps in difficult places: in a stream, during a save, in the first and last step, in weights, in metrics."""

import json
import threading

import numpy as np
import policy_lab as lab
import pytest
import tensorflow as tf

from core.checkpoint import saves
from core.data import Stream
from core.optimizers import sgd
from core.task import Loss, Update
from core.telemetry import Telemetry, Warned
from tests.toys import Line
from tests.trainers.trainer_lab import make, newest
from trainers.loop.input import Chunks
from trainers.loop.speed import Meter

around = pytest.fixture(scope="module")(lab.leading)


def short_stream(*bad, rows=100):
    """Returns an epoch of some examples, of which those at these places of the run are bad."""

    def numbers(seed, epoch):
        for i in range(rows):
            yield {"x": lab.X[i], "times": np.float32(np.nan if epoch * rows + i in bad else 1.0)}

    return Stream(numbers)


@pytest.mark.parametrize(
    ("policy", "examples"),
    [
        pytest.param("skip", lab.STEPS * lab.BATCH, marks=pytest.mark.long),
        ("rollback", (lab.STEPS + 4 + 1) * lab.BATCH),
    ],
)
def test_stream_resumes_past_bad_steps_and_ends_the_same_if_killed(tmp_path, policy, examples):
    def trainer(name):
        return lab.trainer_of(tmp_path, name, short_stream(190, 199), task=lab.One, on_nonfinite=policy)

    whole = trainer("whole")
    lab.copy_at_save(whole, lambda state: state.step == 30)
    lab.train(whole)
    assert newest(whole).examples == examples
    again = trainer("killed")
    lab.resume(again)
    assert lab.end_of(again) == lab.end_of(whole)


@pytest.mark.long
def test_run_goes_back_to_the_checkpoint_being_written(tmp_path, monkeypatch, around):
    """The bad step is found long before the writer is done."""
    held, asked, write = threading.Event(), [], saves.write_parts

    def slow(folder, *arguments):
        asked.append(folder)
        if len(asked) == 3:  # that of step 20
            assert held.wait(60)
        return write(folder, *arguments)

    run = lab.trainer_of(tmp_path, "run", lab.struck(tmp_path, 20), on_nonfinite="rollback")
    settle = run.state.saves.settle

    def settling(*arguments):
        held.set()
        settle(*arguments)

    monkeypatch.setattr(saves, "write_parts", slow)
    monkeypatch.setattr(run.state.saves, "settle", settling)
    lab.train(run)
    lab.assert_same(lab.weights(run), around((0, 20), (20, lab.STEPS, 1)))
    assert newest(run).examples == (lab.STEPS + 1) * lab.BATCH


class Waits:
    """Records the share of data waits that a metric line reports."""

    def __init__(self):
        self.found = []

    def write(self, step, split, figures):
        if split == "train":
            self.found.append(figures["data_wait"])

    def close(self):
        pass


class Overflowing(lab.Pair):
    """A finite loss and a finite gradient give weights that aren't finite."""

    def phases(self):
        return [Update("both", loss=self.loss, trains=[self.first, self.second], optimizer=sgd(1e30))]

    def loss(self, batch, rng):  # steps of about 0.1; one of 1e47 where an example strikes
        total = tf.add_n([tf.reduce_sum(v) for v in (self.first.w, self.first.b, self.second.w, self.second.b)])
        return Loss(total * (batch["times"] - 1.0 + 1e-31 * batch["x"][:, 0]))


@pytest.mark.long
def test_bad_weights_that_no_loss_has_shown_are_gone_back_from(tmp_path):
    """The last step before a checkpoint writes them."""

    def trainer(name, **policies):
        how = {"steps": 20, "global_batch_size": lab.BATCH, "chunk_steps": 5, "log_every": 5, "checkpoint_every": 10}
        task = Overflowing
        return make(tmp_path, name, task=task, source=lab.struck(tmp_path, 9, value=1e18), **how, **policies)

    back = trainer("back", on_nonfinite="rollback")
    assert lab.train(back)[-1][2]["rollbacks"] == 1
    lab.assert_same(lab.weights(back), lab.led(trainer("around"), (0, 20, 10)))


class Measured(Line):
    """A bad example shows in a metric alone."""

    def loss(self, batch, rng):
        return Loss(tf.square(self.net(batch["x"])[:, 0]), metrics={"odd": batch["times"]})


@pytest.mark.long
def test_bad_metric_leaves_no_step_out(tmp_path):
    examples, how = (
        lab.struck(tmp_path, 7, value=np.inf),
        {"task": Measured, "steps": 10, "global_batch_size": lab.BATCH},
    )
    found = {}
    for policy in ("raise", "skip", "rollback"):
        trainer = make(tmp_path, policy, source=examples, on_nonfinite=policy, **how)
        ((_, _, figures),) = lab.train(trainer)
        assert figures["odd"] == np.inf
        assert {figures.get("skipped_steps", 0), figures.get("rollbacks", 0)} == {0}
        found[policy] = lab.weights(trainer)
    lab.assert_same(found["skip"], found["raise"])
    lab.assert_same(found["rollback"], found["raise"])


@pytest.mark.parametrize(
    ("policy", "says", "last"),
    [pytest.param("skip", "was skipped", 39, marks=pytest.mark.long), ("rollback", "has gone back", 39 + 4)],
)
def test_sections_warnings_and_waits_of_bad_steps(tmp_path, policy, says, last, monkeypatch):
    """In the first step, the last and one between; reading data again after a rollback isn't a wait for data."""
    trainer = lab.trainer_of(tmp_path, "run", lab.struck(tmp_path, 0, 13, last), task=lab.One, on_nonfinite=policy)
    begun, now, chunks_from = [], [0.0], trainer.input.chunks_from
    monkeypatch.setattr(trainer.watchdog, "begin", lambda section, what: begun.append((section, what)))
    trainer.meter = Meter(clock=lambda: now[0])

    def slow_at_first(*arguments, **options):
        now[0] += 100.0
        yield from chunks_from(*arguments, **options)

    trainer.input.chunks_from = lambda *arguments, **options: Chunks(slow_at_first(*arguments, **options))
    telemetry = Telemetry([waits := Waits()], Warned(trainer.workdir.warnings, 0))
    trainer.train(telemetry)
    telemetry.close()
    warned = [json.loads(line)["warning"] for line in trainer.workdir.warnings.read_text().splitlines()]
    # After a rollback, the next bad example comes as many steps sooner as were skipped.
    warned = [text for text in warned if says in text]
    for step, text in zip((0, 13 if policy == "skip" else 12, 39), warned, strict=True):
        assert text.startswith(f"step {step} ")
    assert waits.found == [0.0] * 4
    assert now[0] == (100.0 if policy == "skip" else 400.0)
    if policy == "rollback":
        first = begun.index(("save", "the checkpoint of the beginning"))
        looked = begun.index(("step", "looking into step 0"))
        back = begun.index(("save", "going back to a checkpoint"))
        assert first < looked < back
        assert begun[back + 1] == ("data", "the next chunk of data")
    assert newest(trainer).step == lab.STEPS
    assert newest(trainer).examples == (lab.STEPS if policy == "skip" else lab.STEPS + 1 + 3 + 10) * lab.BATCH
    assert lab.ROWS > lab.STEPS * lab.BATCH  # one epoch: each step strikes once
