"""Narrow optimizer slots with the command: resumed runs, replicas, losses, refusals, and what the modes say."""

import functools

import pytest

from core.data import digits
from core.optimizers import adamw, warmup_cosine
from models.classifiers.mlp import MlpClassifier
from tests.commands import CONFIGS, passed, refused
from tests.trainers.resume_lab import killed_after, outcome
from tests.trainers.trainer_lab import make, train

MLP = [f"--gin_file={CONFIGS / 'digits_mlp.gin'}"]
INTERVALS = {"log_every": 10, "checkpoint_every": 10, "evaluate_every": None}
SHORT = ["--gin_param=steps = 20", "--gin_param=warmup_cosine.warmup_steps = 10"]
FLAGS = [*MLP, *SHORT, *(f"--gin_param=Trainer.{name} = {n}" for name, n in INTERVALS.items())]
FLAGS.append("--gin_param=Experiment.eval_source = None")
MIRRORED = [f"--gin_file={CONFIGS / 'runtime' / 'mirrored.gin'}", "--gin_param=mirrored.replicas = 2"]
DTYPES = pytest.mark.parametrize("slots", ["bfloat16", "int8"])


def slots_of(dtype):
    return f"--gin_param=adamw.slots = '{dtype}'"


@pytest.mark.long
def test_killed_run_resumes_to_the_same_bits_and_with_no_other_dtype(tmp_path):
    flags = [*FLAGS, *MIRRORED, "--gin_param=Trainer.check_replicas_every = 10"]
    passed(*flags, slots_of("int8"), "--workdir=whole", cwd=tmp_path)
    killed_after(tmp_path / "whole", 10, tmp_path)
    refused(*flags, "--workdir=killed", cwd=tmp_path, exit_code=2, says=["- adamw.slots = 'int8'"])
    done = passed(*flags, slots_of("int8"), "--workdir=killed", cwd=tmp_path)
    assert "resuming from step 10" in done.stdout
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.long
def test_killed_local_steps_resume_to_the_same_bits(tmp_path):
    local = [*FLAGS, *MIRRORED, slots_of("bfloat16"), "--gin_param=Trainer.local_steps = 5"]
    passed(*local, "--workdir=whole", cwd=tmp_path)
    killed_after(tmp_path / "whole", 10, tmp_path)
    passed(*local, "--workdir=killed", cwd=tmp_path)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.long
def test_loss_is_within_a_hundredth_of_that_of_float32_slots(tmp_path):
    def loss(slots):
        rate = warmup_cosine(3e-3, warmup_steps=10, total_steps=300)
        task = functools.partial(MlpClassifier, sizes=[64, 128, 10], optimizer=adamw(rate, slots=slots))
        trainer = make(tmp_path, slots, task=task, source=digits(), steps=300, chunk_steps=50, log_every=300)
        return train(trainer)[0][2]["loss"]

    expected = pytest.approx(loss("float32"), rel=0.01)
    assert loss("bfloat16") == expected
    assert loss("int8") == expected


@DTYPES
def test_modes_say_the_bytes_of_slots(slots, tmp_path):
    narrowed, others = 2 * 64 * 128, 2 * (128 + 128 * 10 + 10)
    stored = narrowed * (2 if slots == "bfloat16" else 1) + (0 if slots == "bfloat16" else 4 * narrowed // 256)
    stored, wide = stored + 4 * others, 4 * (narrowed + others)
    done = passed(*FLAGS, slots_of(slots), "--mode=summary", cwd=tmp_path)
    assert f"narrow slots: the optimizers' slots take {stored:,} bytes; in float32, {wide:,}" in done.stdout
    done = passed(*FLAGS, slots_of(slots), "--mode=dry_run", "--gin_param=DryRun.peak = 1e12", cwd=tmp_path)
    assert "narrow slots: slots take" in done.stdout
    assert "narrow slots" not in passed(*FLAGS, "--mode=summary", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--gin_param=adamw.slots = 'int4'"], ["`slots` is 'int4'; give one of 'float32', 'bfloat16', 'int8'"]),
        (
            [
                "--gin_param=MlpClassifier.optimizer = @sgd()",
                "--gin_param=sgd.learning_rate = 0.1",
                "--gin_param=sgd.slots = 'int8'",
            ],
            ["`slots` is 'int8', but `momentum` is 0.0"],
        ),
        (
            [slots_of("int8"), *MIRRORED, "--gin_param=Trainer.local_steps = 5"],
            ["phase `net` stores `adamw/m/layers/0/w` in 8-bit codes", "`Trainer.local_steps`"],
        ),
        (
            [slots_of("bfloat16"), f"--gin_file={CONFIGS / 'runtime' / 'mesh.gin'}"],
            ["in bfloat16 (`slots`), whose rounding a mesh can't shard"],
        ),
        (
            [slots_of("int8"), f"--gin_file={CONFIGS / 'runtime' / 'mesh.gin'}", "--mode=dry_run"],
            ["in int8 (`slots`), whose rounding a mesh can't shard"],
        ),
    ],
    ids=["dtype", "no slots", "local steps", "mesh", "dry run of a mesh"],
)
def test_unsupported_slots_are_refused_before_the_first_step(flags, says, tmp_path):
    refused(*FLAGS, *flags, cwd=tmp_path, exit_code=2, says=says)
    assert not list(tmp_path.rglob("checkpoints/step-*"))
