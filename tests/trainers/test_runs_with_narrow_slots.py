"""Narrow optimizer slots with the command: resumed runs, replicas, losses, refusals, and what the modes say."""

import pytest

from tests.commands import CONFIGS, passed, refused
from tests.trainers.resume_lab import killed_after, outcome

MLP = [f"--gin_file={CONFIGS / 'digits_mlp.gin'}"]
INTERVALS = {"log_every": 50, "checkpoint_every": 50, "evaluate_every": 100}
SHORT = ["--gin_param=steps = 100", "--gin_param=warmup_cosine.warmup_steps = 10"]
FLAGS = [*MLP, *SHORT, *(f"--gin_param=Trainer.{name} = {n}" for name, n in INTERVALS.items())]
MIRRORED = [f"--gin_file={CONFIGS / 'runtime' / 'mirrored.gin'}", "--gin_param=mirrored.replicas = 2"]
DTYPES = pytest.mark.parametrize("slots", ["bfloat16", "int8"])


def slots_of(dtype):
    return f"--gin_param=adamw.slots = '{dtype}'"


@pytest.mark.long
@DTYPES
@pytest.mark.parametrize("strategy", [[], MIRRORED], ids=["one", "two"])
def test_killed_run_resumes_to_the_same_bits(strategy, slots, tmp_path):
    flags = [*FLAGS, *strategy, slots_of(slots), "--gin_param=Trainer.check_replicas_every = 50"]
    passed(*flags, "--workdir=whole", cwd=tmp_path)
    killed_after(tmp_path / "whole", 50, tmp_path)
    done = passed(*flags, "--workdir=killed", cwd=tmp_path)
    assert "resuming from step 50" in done.stdout
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.long
def test_killed_local_steps_resume_to_the_same_bits(tmp_path):
    local = [*FLAGS, *MIRRORED, slots_of("bfloat16"), "--gin_param=Trainer.local_steps = 5"]
    passed(*local, "--workdir=whole", cwd=tmp_path)
    killed_after(tmp_path / "whole", 50, tmp_path)
    passed(*local, "--workdir=killed", cwd=tmp_path)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.long
def test_loss_is_within_a_hundredth_of_that_of_float32_slots(tmp_path):
    steps = [*FLAGS, "--gin_param=steps = 300", "--gin_param=Trainer.log_every = 300"]
    losses = {}
    for slots in ("float32", "bfloat16", "int8"):
        passed(*steps, slots_of(slots), f"--workdir={slots}", cwd=tmp_path)
        step, _, lines = outcome(tmp_path / slots)
        assert step == 300
        losses[slots] = next(line["loss"] for line in lines if line["split"] == "train")
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.01)
    assert losses["int8"] == pytest.approx(losses["float32"], rel=0.01)


@pytest.mark.long
@DTYPES
def test_another_dtype_on_resume_is_a_change_of_configuration(slots, tmp_path):
    passed(*FLAGS, "--workdir=run", cwd=tmp_path)
    says = ["adamw.slots"]
    refused(*FLAGS, slots_of(slots), "--gin_param=steps = 150", "--workdir=run", cwd=tmp_path, exit_code=2, says=says)


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
