"""`Trainer.stages`: batches and sources that change at given steps. A border loses, repeats and rounds nothing."""

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf

import trainers
from core.data import ArraySource, Stream
from core.distribution import mirrored
from core.errors import CheckpointError, ConfigurationError
from core.testing import on_virtual_mesh
from tests.commands import CONFIGS, passed, run
from tests.toys import Line
from tests.trainers.resume_lab import outcome
from tests.trainers.trainer_lab import Crash, hashes, make, newest, train
from trainers import Experiment, Settings

STAGES = {4: {"global_batch_size": 16}, 8: {"global_batch_size": 24, "microbatches": 2}}
FIRST = {"steps": 12, "global_batch_size": 8, "chunk_steps": 2, "log_every": 6}


def stages(trainer):
    """Trains to the end. Returns the trainers of all stages."""
    found = [trainer]
    train(trainer)
    while not found[-1].state.finished:
        found.append(found[-1].next_stage())
        train(found[-1])
    return found


@pytest.mark.long
@pytest.mark.parametrize(("replicas", "later"), [(1, STAGES), (2, {4: STAGES[8]})], ids=["one device", "2 replicas"])
def test_stages_are_resumes_with_other_batches(replicas, later, tmp_path):
    def strategy():
        return mirrored(replicas=replicas) if replicas > 1 else None

    first = {**FIRST, "steps": 4 + 4 * len(later)}
    found = stages(make(tmp_path, **first, stages=later, strategy=strategy()))
    batches = [8, *(stage["global_batch_size"] for stage in later.values())]
    assert [one.input.global_batch_size for one in found] == batches
    before = make(tmp_path, "by hand", **{**FIRST, "steps": 4}, strategy=strategy())
    train(before)
    for step, batch in later.items():
        after = make(tmp_path, "by hand", **{**FIRST, **batch, "steps": step + 4}, strategy=strategy())
        after.state.restore(newest(before))
        train(after)
        before = after
    assert hashes(found[-1]) == hashes(before)
    by_stage = [(one, range(first, first + 4)) for one, first in zip(found, [0, *later], strict=True)]
    read = [one.input.examples_of(step).ravel() for one, steps in by_stage for step in steps]
    steps = 4 * sum(batches) // 8
    alone = make(tmp_path, "alone", **{**FIRST, "steps": steps}).input
    expected = [alone.examples_of(step).ravel() for step in range(steps)]
    np.testing.assert_array_equal(np.concatenate(read), np.concatenate(expected))


# A second border adds nothing.
TWO = {**FIRST, "steps": 8, "log_every": 4, "checkpoint_every": 2, "stages": {4: STAGES[8]}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns the trainer of the last stage of an undisturbed run."""
    return stages(make(tmp_path_factory.mktemp("whole"), **TWO))[-1]


@pytest.mark.long
@pytest.mark.parametrize(("crash", "saved"), [(4, 2), (6, 4)])
def test_run_that_ends_at_or_within_a_stage_resumes_to_the_same_bits(crash, saved, whole, tmp_path):
    with pytest.raises(RuntimeError, match="crash"):
        stages(make(tmp_path, **TWO, hooks=[Crash(crash)]))  # before the checkpoint of this step
    resumed = make(tmp_path, **TWO, step=saved)
    resumed.state.restore(newest(resumed))
    assert resumed.step == saved
    assert hashes(stages(resumed)[-1]) == hashes(whole)


class Sequences(Line):
    """Judges the mean of a sequence; records their lengths."""

    lengths: ClassVar = set[int]()

    def error(self, batch):
        self.lengths.add(batch["x"].shape[1])
        return self.net(tf.reduce_mean(batch["x"], axis=1))[:, 0] - batch["y"]


def sequences(length, **more):
    random = np.random.RandomState(length)
    values = {"x": random.randn(40, length, 3), "y": random.randn(40)}
    return ArraySource({name: x.astype("float32") for name, x in values.items()} | more, name=f"of {length}")


def test_a_stage_may_have_longer_sequences(tmp_path):
    Sequences.lengths.clear()
    long = {4: {"train_source": sequences(9)}}
    first, second = stages(make(tmp_path, task=Sequences, source=sequences(5), **{**FIRST, "steps": 8}, stages=long))
    assert Sequences.lengths == {5, 9}
    assert first.input.description == second.input.description  # by which the run recognises its sources
    assert second.input.examples_before(4) == 32
    assert newest(second).examples == 64


def test_python_call_resumes_in_its_stage(tmp_path):
    def trained(steps):
        changes = {4: {"train_source": sequences(9), "global_batch_size": 16}}
        settings = Settings(steps=steps, global_batch_size=8, evaluate_every=None, stages=changes)
        experiment = Experiment(task=Sequences, train_source=sequences(5))
        return trainers.train(experiment, settings, tmp_path / "run", quiet=True)

    assert trained(6).manifest.examples == 4 * 8 + 2 * 16
    resumed = trained(8)
    assert (resumed.step, resumed.manifest.examples) == (8, 4 * 8 + 4 * 16)
    assert resumed.experiment.train_source.name == "of 5"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"stages": {}}, r"`Trainer.stages` is \{\}; give settings by first step"),
        ({"stages": [4]}, r"`Trainer.stages` is \[4\]; give settings by first step"),
        ({"stages": {0: STAGES[4]}}, "has the key 0; each key is the number of steps before the stage"),
        ({"stages": {4.0: STAGES[4]}}, "has the key 4.0;"),
        ({"stages": {4: 16}}, "has 16 at step 4; give a dict of settings"),
        ({"stages": {4: {"microbatch": 2}}}, "changes 'microbatch' at step 4; .* Did you mean `microbatches`"),
        ({"stages": {4: {"global_batch_size": 0}}}, "has `global_batch_size` 0 at step 4; it must be at least 1"),
        ({"stages": {4: {"train_source": 3}}}, "`train_source` of step 4 in `Trainer.stages` is of type int"),
        ({"stages": STAGES, "memory_budget": "1 GiB"}, "remove the budget, and give `microbatches` in each stage"),
        ({"stages": STAGES, "chunk_steps": 3}, "is 4, which isn't a multiple of `Trainer.chunk_steps` = 3"),
        ({"stages": STAGES, "local_steps": 3}, "is 4, which isn't a multiple of `Trainer.local_steps` = 3"),
    ],
)  # fmt: skip
def test_bad_stages_are_refused(changed, says):
    with pytest.raises(ConfigurationError, match=says):
        Settings(steps=12, global_batch_size=8, log_every=6, evaluate_every=6, checkpoint_every=6, **changed)


def endless(seed, epoch):
    while True:
        yield {"x": np.ones([9, 3], "float32"), "y": np.float32(epoch)}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (lambda: sequences(9, mask=np.ones(40, "float32")), "`mask float32`.*only shapes may change"),
        (lambda: Stream(endless), "is the stream `endless`"),
    ],
)
def test_bad_sources_of_stages_are_refused_at_the_start(source, says, tmp_path):
    with pytest.raises(ConfigurationError, match=says):
        make(tmp_path, task=Sequences, source=sequences(5), **FIRST, stages={4: {"train_source": source()}})


@pytest.mark.parametrize(("own", "later"), [("one", "another"), ("one", None), (None, "another")])
def test_source_of_another_tokenizer_is_refused_at_the_start(own, later, tmp_path):
    sources = [sequences(5), sequences(9)]
    for source, identity in zip(sources, (own, later), strict=True):
        if identity:
            source.tokenizer = SimpleNamespace(identity=identity)
    stages = {4: {"train_source": sources[1]}}
    with pytest.raises(ConfigurationError, match="source at step 4 whose tokens are another tokenizer's"):
        make(tmp_path, task=Sequences, source=sources[0], **FIRST, stages=stages)


def test_batch_that_replicas_cannot_share_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigurationError, match="from step 4 on, `global_batch_size` is 15, which"):
        make(tmp_path, **FIRST, stages={4: {"global_batch_size": 15}}, strategy=mirrored(replicas=2))


def test_stages_of_a_mesh_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="is for one device and replicas: meshes and parameter servers keep"):
        make(tmp_path, **FIRST, stages=STAGES, strategy=on_virtual_mesh(1, 2))


def test_steps_of_an_earlier_stage_are_not_read(tmp_path):
    later = make(tmp_path, **FIRST, stages=STAGES, step=8)
    with pytest.raises(CheckpointError, match="begins at step 8, and its checkpoint is gone: step 4 is of an earlier"):
        later.input.chunks_from(4)


@pytest.mark.long
def test_command_killed_in_a_stage_resumes_to_the_same_bits(tmp_path):
    flags = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--gin_param=Trainer.steps = 60"]
    flags += ["--gin_param=Trainer.stages = {20: {'global_batch_size': 64}, 40: {'train_source': @again/digits()}}"]
    flags += [f"--gin_param=Trainer.{name}_every = 30" for name in ("log", "checkpoint", "evaluate")]
    whole = passed(*flags, "--workdir=whole", cwd=tmp_path).stdout
    assert "stage from step 40 on: global_batch_size 64, train_source digits" in whole
    assert run(*flags, "--workdir=killed", "--kill_after_step=50", cwd=tmp_path).returncode == -9
    assert "resuming from step 40" in passed(*flags, "--workdir=killed", cwd=tmp_path).stdout
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "killed")
