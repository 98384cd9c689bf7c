"""`--mode=tune` with the command: its output is true of this machine, can be pasted, and leaves a run as it was."""

import json
import types

import pytest

from core.distribution import backend_of
from core.errors import ConfigurationError, PreemptedError
from core.parallel.parameter_server import ServedStrategy
from tests.commands import CONFIGS, launch, passed, run
from tests.trainers.command_lab import gin, write_task
from tests.trainers.diagnose.lab import CONFIGURATION, PLANTED
from trainers.modes import tune as mode
from trainers.modes.tune import Tuning, refuse_what_cannot_be_tried
from trainers.process.signals import Preemption

DIGITS = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
FEW = ["--gin_param=Trainer.chunk_steps = 1", "--gin_param=Trainer.log_every = 10"]  # which leaves one other length
HASTY = """
from trainers.performance.tune import contest, trial

contest.SECONDS = 2.0
trial.TURN_SECONDS = 0.05
trial.PATIENCE_SECONDS = 0.4
"""


@pytest.fixture
def hasty(tmp_path):
    """Returns the flag of a gin file with which a tuning takes a fifth of its time."""
    (tmp_path / "hasty.py").write_text(HASTY)
    return gin(tmp_path, "import hasty\n", name="hasty.gin")


def tune(tmp_path, *flags):
    done = passed(*flags, "--mode=tune", "--workdir=run", cwd=tmp_path)
    return done.stdout, json.loads((tmp_path / "run" / "tune.json").read_text())


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_small_network_is_tuned_and_its_run_stays_as_it_is(hasty, tmp_path):
    few = [hasty, "--gin_param=Trainer.steps = 20", *FEW]
    assert run(DIGITS, *few, "--workdir=run", cwd=tmp_path).returncode == 0
    before = files(tmp_path / "run")
    said, found = tune(tmp_path, DIGITS, *few)
    after = files(tmp_path / "run")
    assert {path: after[path] for path in before if path.name != "native_stderr.log"} == {
        path: x for path, x in before.items() if path.name != "native_stderr.log"
    }
    assert {path.name for path in after.keys() - before.keys()} == {"tune.json"}
    assert found["complete"]
    verdicts = {(row["setting"], row["value"]): row["verdict"] for row in found["tried"]}
    assert "void" not in verdicts.values(), said
    assert "failed" not in verdicts.values(), said
    # Steps of a tenth of a millisecond, one a call: more of them pay on any machine.
    assert found["times_as_fast"] > 1.5, said
    (line,) = (line for line in found["lines"] if line.startswith("Trainer.chunk_steps = "))
    assert line in said
    pasted = [f"--gin_param={line}" for line in found["lines"]]
    passed(DIGITS, *few, *pasted, "--workdir=other", cwd=tmp_path)


@pytest.mark.long
def test_a_source_that_is_slow_comes_first_and_what_xla_refuses_is_named(tmp_path):
    (tmp_path / "planted.py").write_text(PLANTED)
    slow = "Sleepy.seconds = 0.1\nTrainer.parallel_calls = 4\nPlanted.rests = [0.001, 0.0]"
    planted = f"{slow}\nTrainer.chunk_steps = 1\nTrainer.log_every = 1"  # which leaves no other lengths to try
    said, found = tune(tmp_path, gin(tmp_path, CONFIGURATION), gin(tmp_path, planted, name="planted.gin"))
    first, *others = found["tried"]
    assert (first["setting"], first["value"], first["verdict"]) == ("parallel_calls", "8", "faster"), said
    (refused,) = (row for row in others if row["value"] == '"xla"')
    assert refused["verdict"] == "failed", said
    assert "XLA can't compile `" in refused["why"]
    assert "planted.py" in refused["why"]
    assert found["times_as_fast"] > 1.5, said


@pytest.mark.long
def test_workers_tune_together_and_the_first_tells(hasty, tmp_path):
    files = [DIGITS, f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}", hasty]
    done = passed("--workers=2", "--", *files, *FEW, "--mode=tune", "--workdir=run", cwd=tmp_path, run=launch)
    found = json.loads((tmp_path / "run" / "tune.json").read_text())
    assert found["complete"]
    assert {"compile", "chunk_steps", "microbatches", "placements"} <= {row["setting"] for row in found["tried"]}
    assert not {"void", "failed"} & {row["verdict"] for row in found["tried"]}, done.stdout
    assert done.stdout.count("as configured") == 1


MANY = "MADE = []"
SEND = """MADE.append(0)
        if len(MADE) == {count}:
            import os, signal
            os.kill(os.getpid(), signal.SIGTERM)"""


@pytest.mark.long
def test_a_signal_ends_it_with_what_was_found_until_then(tmp_path):
    flag = write_task(tmp_path, outside=MANY, init=SEND.format(count=4))  # in the second trial
    done = run(flag, "--mode=tune", "--workdir=run", cwd=tmp_path)
    assert done.returncode == 75, (done.stdout, done.stderr)
    kept = tmp_path / "run" / "tune.json"
    assert done.stderr.startswith(f"error: stopped by SIGTERM; the results so far are in `{kept}`")
    found = json.loads(kept.read_text())
    assert (found["complete"], len(found["tried"])) == (False, 1)
    assert "as configured" in done.stdout
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"tune.json"}


def test_a_signal_before_the_first_trial_ends_it_at_once(tmp_path):
    flag = write_task(tmp_path, outside=MANY, init=SEND.format(count=1))
    done = run(flag, "--mode=tune", "--workdir=run", cwd=tmp_path)
    assert done.returncode == 75, (done.stdout, done.stderr)
    assert not (tmp_path / "run" / "tune.json").exists()


def test_signal_to_another_worker_stops_this_one_before_its_second_trial(tmp_path, monkeypatch):
    trial = types.SimpleNamespace(compared_steps=lambda: 2)  # a search would fail on it
    monkeypatch.setattr(mode, "Trial", lambda trainer: trial)
    asked = []
    trainer = types.SimpleNamespace(
        input=types.SimpleNamespace(chunk_steps=8),
        settings=types.SimpleNamespace(compile="off"),
        agreement=types.SimpleNamespace(any_worker=lambda mine: asked.append(mine) or True),
    )
    with pytest.raises(PreemptedError, match=r"^stopped by a signal to another worker; .* Run the same command again"):
        Tuning(types.SimpleNamespace(preemption=Preemption()), trainer, tmp_path).run()
    assert asked == [False]


def test_parameter_servers_are_refused_by_name():
    backend = backend_of(object.__new__(ServedStrategy))
    trainer = types.SimpleNamespace(train_step=types.SimpleNamespace(backend=backend))
    with pytest.raises(ConfigurationError, match=r"^`--mode=tune` .* parameter servers .* Leave out the runtime's"):
        refuse_what_cannot_be_tried(trainer)
