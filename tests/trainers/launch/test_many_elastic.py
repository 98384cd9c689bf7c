"""Real workers that are lost, replaced or not: the run ends with the result of undisturbed workers."""

import signal

import numpy as np
import pytest

from tests.commands import CONFIGS, launch, passed
from tests.trainers.launch.launch_lab import planted
from tests.trainers.launch.test_many_workers import QUICK, saved, values
from tests.trainers.launch.test_mesh_workers import lines

# Softmax regression has no kinks, at which rounding would grow to more than 1e-5 in so many steps.
FLAGS = [f"--gin_file={CONFIGS / name}" for name in ("digits_linear.gin", "runtime/multi_worker.gin")]
FLAGS += [
    f"--gin_param=Trainer.{binding}"
    for binding in ("global_batch_size = 48", "checkpoint_every = 20", "evaluate_every = 20", "log_every = 20")
]
# Another process sends the signal, in the middle of a step: TensorFlow holds Python's GIL while it waits for workers.
LOSE = """
import subprocess


def lose(index, number, seconds):
    membership = joined()
    if membership and membership.cluster.index == index and not os.path.exists("lost"):
        open("lost", "w").close()
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -{number} {os.getpid()}"])
"""


def steps(count):
    return [f"--gin_param=Trainer.steps = {count}"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Returns the workdir of two undisturbed workers."""
    folder = tmp_path_factory.mktemp("undisturbed")
    passed("--workers=2", "--", *FLAGS, *steps(80), "--workdir=run", cwd=folder, run=launch)
    return folder / "run"


def disturbed(folder, *flags, index, number, seconds=0.0):
    """Returns the output of two workers, one of which gets a signal that many seconds after step 30."""
    body = f"if run.step == 30: lose({index}, {int(number)}, {seconds})"
    hook = planted(folder, body, every=10, outside=LOSE)
    flags = [*flags, "--deadline=20", "--", *FLAGS, *steps(80), *QUICK, hook, "--workdir=run"]
    done = passed("--workers=2", *flags, cwd=folder, run=launch)
    return done.stdout + done.stderr


def check_same_figures(found, expected):
    mine, theirs = (values(saved(workdir)[0]) for workdir in (found, expected))
    assert mine.keys() == theirs.keys()
    for key, value in theirs.items():
        np.testing.assert_allclose(mine[key], value, rtol=1e-5, atol=1e-5, err_msg=key)
    for mine, theirs in zip(lines(found), lines(expected), strict=True):
        assert mine.pop("split") == theirs.pop("split")
        assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_changes_no_bit_of_what_launch_ends_with(number, undisturbed, chance, tmp_path):
    said = disturbed(tmp_path, "--max_restarts=2", index=1, number=number, seconds=chance.uniform(0.0, 0.05))
    assert "starting all again" in said
    assert saved(tmp_path / "run")[1] == saved(undisturbed)[1]


@pytest.mark.long
@pytest.mark.parametrize("index", [0, 1], ids=["the chief", "another"])
def test_remaining_workers_end_in_the_metrics_of_all(index, undisturbed, tmp_path):
    said = disturbed(tmp_path, "--min_workers=1", index=index, number=signal.SIGKILL)
    assert "starting 1 of 2 workers again from the last checkpoint (1 of 2 restarts left)" in said
    check_same_figures(tmp_path / "run", undisturbed)


@pytest.mark.long
def test_workers_that_are_two_then_one_then_three_end_in_the_figures_of_two(undisturbed, tmp_path):
    for workers, until in ((2, 20), (1, 40), (3, 80)):
        passed(f"--workers={workers}", "--", *FLAGS, *steps(until), "--workdir=run", cwd=tmp_path, run=launch)
    check_same_figures(tmp_path / "run", undisturbed)
