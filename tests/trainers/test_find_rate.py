"""`--mode=find_rate`: its rates, what it suggests, what it refuses, and a run that it leaves as it was."""

import itertools
import json
import math

import pytest
import tensorflow as tf

from core.optimizers import constant, warmup_cosine
from tests.commands import CONFIGS, passed, run
from trainers.modes.find_rate import HIGH, LOW, Point, largest, rising, suggestion

DIGITS = f"--gin_file={CONFIGS / 'digits_mlp.gin'}"


def test_rates_rise_by_equal_factors_around_the_largest_one():
    assert largest(0.2, 10) == 0.2
    assert largest(constant(0.2), 10) == pytest.approx(0.2)
    assert largest(warmup_cosine(0.2, warmup_steps=5, total_steps=9), 9) == pytest.approx(0.2)
    rates = [float(rising(tf.constant(i, tf.int64), rate=0.2, steps=5)) for i in range(5)]
    assert rates[0] == pytest.approx(0.2 * LOW)
    assert rates[-1] == pytest.approx(0.2 * HIGH, rel=1e-5)
    assert [b / a for a, b in itertools.pairwise(rates)] == pytest.approx([(HIGH / LOW) ** 0.25] * 4, rel=1e-5)


def test_suggestion_is_a_tenth_of_the_best_rate():
    points = [Point(multiple, 0.0, average) for multiple, average in ((0.01, 2.0), (1.0, 0.5), (10.0, 3.0))]
    assert suggestion(points) == pytest.approx(0.1)
    assert suggestion(points[:1]) is None
    assert suggestion([]) is None


def contents(folder):
    """Returns {name: bytes} of the files, without TensorFlow's own messages."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name != "native_stderr.log"}


def test_range_test_suggests_a_rate_and_leaves_a_run_as_it_was(tmp_path):
    few = "--gin_param=steps = 120"
    passed(DIGITS, few, "--workdir=run", cwd=tmp_path)
    before = contents(tmp_path / "run")
    done = passed(DIGITS, few, "--mode=find_rate", "--workdir=run", cwd=tmp_path)
    assert "adamw.learning_rate" in done.stdout
    found = json.loads((tmp_path / "run" / "find_rate.json").read_text())
    assert found["configured"] == {"adamw.learning_rate": pytest.approx(3e-3)}
    assert 1e-4 < found["suggested"]["adamw.learning_rate"] < 0.1
    assert all(math.isfinite(point["average"]) for point in found["points"])
    after = contents(tmp_path / "run")
    del after["find_rate.json"]
    assert after == before


def test_task_with_several_updates_is_refused(tmp_path):
    done = run(f"--gin_file={CONFIGS / 'digits_gan.gin'}", "--mode=find_rate", "--workdir=run", cwd=tmp_path)
    assert done.returncode == 2
    assert "`--mode=find_rate` compares the losses of one update, but this task has" in done.stderr
