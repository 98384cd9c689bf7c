"""Real workers that are lost and not replaced: the remaining ones reach the same result as all."""

import os
import signal

import numpy as np
import pytest

from tests.commands import CONFIGS, launch, passed
from tests.trainers.launch.test_many_workers import QUICK, saved, start, values
from tests.trainers.launch.test_mesh_workers import lines

# Softmax regression has no kinks, at which rounding would grow to more than 1e-5 in so many steps.
FLAGS = [f"--gin_file={CONFIGS / name}" for name in ("digits_linear.gin", "runtime/multi_worker.gin")]
FLAGS += [
    f"--gin_param=Trainer.{binding}"
    for binding in ("global_batch_size = 48", "checkpoint_every = 50", "evaluate_every = 100", "log_every = 100")
]


def steps(count):
    return [f"--gin_param=Trainer.steps = {count}"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Returns the workdir of two undisturbed workers."""
    folder = tmp_path_factory.mktemp("undisturbed")
    passed("--workers=2", "--", *FLAGS, *steps(500), "--workdir=run", cwd=folder, run=launch)
    return folder / "run"


def check_same_figures(found, expected):
    mine, theirs = (values(saved(workdir)[0]) for workdir in (found, expected))
    assert mine.keys() == theirs.keys()
    for key, value in theirs.items():
        np.testing.assert_allclose(mine[key], value, rtol=1e-5, atol=1e-5, err_msg=key)
    for mine, theirs in zip(lines(found), lines(expected), strict=True):
        assert mine.pop("split") == theirs.pop("split")
        assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("index", [0, 1], ids=["the chief", "another"])
def test_remaining_workers_end_in_the_metrics_of_all(index, undisturbed, tmp_path):
    flags = ["--min_workers=1", "--deadline=20", "--", *FLAGS, *steps(500), *QUICK, "--workdir=run"]
    process, workers = start(tmp_path, *flags)
    os.kill(workers[index], signal.SIGKILL)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "starting 1 of 2 workers again from the last checkpoint (1 of 2 restarts left)" in said
    check_same_figures(tmp_path / "run", undisturbed)


@pytest.mark.long
def test_workers_that_are_two_then_one_then_four_end_in_the_figures_of_two(undisturbed, tmp_path):
    for workers, until in ((2, 200), (1, 300), (4, 500)):
        passed(f"--workers={workers}", "--", *FLAGS, *steps(until), "--workdir=run", cwd=tmp_path, run=launch)
    check_same_figures(tmp_path / "run", undisturbed)
