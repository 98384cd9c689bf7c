"""Local steps with the trainer and the command: checkpoints, refusals, dry runs."""

import numpy as np
import pytest

from core.errors import ConfigurationError, NotFiniteError
from core.optimizers import chain, ema, sgd
from core.testing import on_virtual_cpus
from tests import toys
from tests.commands import CONFIGS, passed, refused
from tests.trainers.trainer_lab import HELD_OUT, Small, hashes, make, newest, train
from trainers.lifecycle.train_to_end import begin
from trainers.modes.train_eagerly import eager_step
from trainers.replay.repeat_steps import pass_steps

FILES = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", "runtime/mirrored", "runtime/local_steps")]
INTERVALS = {"steps": 20, "log_every": 20, "checkpoint_every": 20, "evaluate_every": None}
FLAGS = [*FILES, *(f"--gin_param=Trainer.{name} = {steps}" for name, steps in INTERVALS.items())]


class Averaging(Small):
    optimizer = chain(sgd(0.1, momentum=0.9), ema(0.9))


def local(tmp_path, name="run", replicas=2, **settings):
    settings = {"local_steps": 5, "outer": sgd(0.9, momentum=0.5), "microbatches": 2, **settings}
    return make(tmp_path, name, task=Averaging, strategy=on_virtual_cpus(replicas), **settings)


@pytest.mark.long
def test_run_killed_within_a_metric_line_resumes_to_the_same_bits(tmp_path):
    """With averages of the weights, microbatches, and chunks of two rounds."""
    intervals = {"log_every": 30, "checkpoint_every": 20, "evaluate_every": 20, "check_replicas_every": 10}
    intervals["eval_source"] = HELD_OUT
    whole = local(tmp_path, "whole", **intervals)
    lines = train(whole)
    assert [line[:2] for line in lines] == [(20, "eval"), (30, "train"), (40, "train"), (40, "eval")]
    resumed = local(tmp_path, "resumed", **intervals)
    assert begin(resumed, newest(whole, up_to=20)).lines == ["resuming from step 20 (`step-000000020`)"]
    assert train(resumed) == lines[1:]
    assert hashes(resumed) == hashes(whole)
    assert any(path.startswith("outer/sgd/momentum/net") for path in hashes(whole))


def test_checkpoint_resumes_on_other_replicas_but_not_within_a_round(tmp_path):
    trainer = local(tmp_path)
    trainer.state.advance(20)
    trainer.save()
    on_four = local(tmp_path, "four", replicas=4)
    assert "2 replicas took the local steps before, 4 take them now" in begin(on_four, newest(trainer)).lines[1]
    other = local(tmp_path, local_steps=8, steps=48, log_every=16, chunk_steps=8)
    says = r"is of step 20, which is within a round of `Trainer\.local_steps` = 8"
    with pytest.raises(ConfigurationError, match=says):
        other.state.restore(newest(other))


def test_command_refuses_another_outer_optimizer(tmp_path):
    passed(*FLAGS, "--workdir=run", cwd=tmp_path)
    other = refused(*FLAGS, "--workdir=run", "--gin_param=Trainer.outer = None", cwd=tmp_path, exit_code=2, says=[])
    assert "- Trainer.outer = @outer/sgd()\n+ Trainer.outer = None" in other


def test_dry_run_counts_collectives_by_round(tmp_path):
    done = passed(*FLAGS, "--gin_param=DryRun.peak = 1e12", "--mode=dry_run", cwd=tmp_path)
    assert "between replicas, in a round of 20 steps" in done.stdout


@pytest.mark.long
def test_eager_round_is_the_traced_one(tmp_path):
    settings = {"task": toys.Line, "source": toys.point_source(64), "strategy": on_virtual_cpus(2), "steps": 4}
    settings |= {"local_steps": 2, "chunk_steps": 2, "log_every": None, "outer": sgd(0.9)}
    eager, traced = (make(tmp_path, name, **settings) for name in ("eager", "traced"))
    eager_step(eager)
    pass_steps(traced, 2)
    for path, variable in traced.state.variables.items():
        np.testing.assert_allclose(eager.state.variables[path].numpy(), variable.numpy(), atol=1e-6, err_msg=path)


def test_weights_that_overflow_within_a_round_end_the_run_at_the_step_and_are_not_saved(tmp_path):
    # Gradient descent with far too high a rate: the loss overflows after some steps of the first round.
    class Wild(toys.Line):
        optimizer = sgd(1e5)

    settings = {"local_steps": 10, "checkpoint_every": 10, "strategy": on_virtual_cpus(2)}
    trainer = make(tmp_path, task=Wild, source=toys.point_source(64), **settings)
    says = r"step \d is not finite: a loss or gradient of one replica.*with the weights from the start of the round"
    with pytest.raises(NotFiniteError, match=says):
        train(trainer)
    assert 0 < trainer.step < 10
    assert not list(trainer.workdir.checkpoints.glob("*"))
