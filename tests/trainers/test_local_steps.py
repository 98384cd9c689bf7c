"""Local steps as users have them: the command, its checkpoints, and what it refuses."""

import signal

import pytest
from command_lab import write_task

from core.data import digits
from core.errors import ConfigurationError
from core.optimizers import adamw, chain, ema, sgd
from core.testing import on_virtual_cpus
from models.classifiers.mlp import MlpClassifier
from tests.commands import CONFIGS, refused, run
from tests.trainers.test_resume import outcome
from tests.trainers.trainer_lab import Crash, hashes, make, newest, train

FILES = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", "runtime/mirrored", "runtime/local_steps")]
INTERVALS = {"steps": 80, "log_every": 60, "checkpoint_every": 20, "evaluate_every": 40}
FLAGS = [*FILES, *(f"--gin_param=Trainer.{name} = {steps}" for name, steps in INTERVALS.items())]


def averaging_mlp(*, rng):
    return MlpClassifier(rng=rng, sizes=[64, 16, 10], dropout=0.1, optimizer=chain(adamw(3e-3), ema(0.9)))


def local(tmp_path, name="run", replicas=2, **settings):
    settings = {"local_steps": 5, "outer": sgd(0.9, momentum=0.5), "microbatches": 2, **settings}
    return make(
        tmp_path, name, task=averaging_mlp, eval_source=digits("test"), strategy=on_virtual_cpus(replicas), **settings
    )


@pytest.mark.long
def test_a_run_killed_in_the_middle_of_a_metric_line_goes_on_with_the_same_bits(tmp_path):
    """With averages of the weights, microbatches, and chunks of two rounds."""
    intervals = {"log_every": 30, "checkpoint_every": 20, "evaluate_every": 20, "check_replicas_every": 10}
    whole = local(tmp_path, "whole", **intervals)
    lines = train(whole)
    assert [line[:2] for line in lines] == [(20, "eval"), (30, "train"), (40, "train"), (40, "eval")]
    with pytest.raises(RuntimeError, match="crash"):
        train(local(tmp_path, "killed", hooks=[Crash(30)], **intervals))
    resumed = local(tmp_path, "killed", **intervals)
    assert resumed.state.restore(newest(resumed))
    assert train(resumed) == lines[1:]
    assert hashes(resumed) == hashes(whole)
    assert any(path.startswith("outer/sgd/momentum/net") for path in hashes(whole))


def test_a_checkpoint_from_within_a_round_is_refused(tmp_path):
    train(local(tmp_path, steps=20, checkpoint_every=20))
    other = local(tmp_path, local_steps=8, steps=48, log_every=16, chunk_steps=8)
    with pytest.raises(
        ConfigurationError, match=r"is of step 20, which is within a round of `Trainer\.local_steps` = 8"
    ):
        other.state.restore(newest(other))


def test_the_command_goes_on_and_says_where_the_numbers_change(tmp_path):
    assert run(*FLAGS, "--workdir=whole", cwd=tmp_path).returncode == 0
    killed = run(*FLAGS, "--workdir=killed", "--kill_after_step=60", cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    done = run(*FLAGS, "--workdir=killed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "numbers change" not in done.stdout
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    on_four = ["--workdir=whole", "--gin_param=mirrored.replicas = 4", "--gin_param=Trainer.steps = 120"]
    done = run(*FLAGS, *on_four, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 replicas took its local steps, and now 4 do" in done.stdout
    other = refused(*FLAGS, "--workdir=killed", "--gin_param=Trainer.outer = None", cwd=tmp_path, exit_code=2, says=[])
    assert "- Trainer.outer = @outer/sgd()\n+ Trainer.outer = None" in other


def test_rounds_within_intervals_are_refused_by_the_command(tmp_path):
    says = ["`Trainer.log_every` is 70", "`Trainer.local_steps` = 20", "Use 80"]
    refused(*FLAGS, "--gin_param=Trainer.log_every = 70", cwd=tmp_path, exit_code=2, says=says)


def test_a_dry_run_and_one_eager_round(tmp_path):
    done = run(*FLAGS, "--gin_param=DryRun.peak = 1e12", "--mode=dry_run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "between replicas, in a round of 20 steps" in done.stdout
    done = run(*FLAGS, "--eager", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_weights_that_run_away_within_a_round_end_the_run_at_the_step_and_save_nothing(tmp_path):
    # Gradient descent with much too high a rate: the loss overflows after some steps of the first round.
    local = ["--gin_param=Trainer.local_steps = 10", "--gin_param=Trainer.checkpoint_every = 10"]
    flags = [write_task(tmp_path), FILES[1], *local, "--gin_param=sgd.learning_rate = 1e5", "--workdir=run"]
    says = ["is not finite: a loss or gradient of one replica", "by those of the beginning"]
    text = refused(*flags, cwd=tmp_path, exit_code=3, says=says)
    assert 0 < int(text.split("step ")[1].split()[0]) < 10
    assert not list((tmp_path / "run").glob("checkpoints/*"))
