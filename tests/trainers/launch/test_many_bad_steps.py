"""Bad steps of several real workers: a step that a bad row spoils at one worker is bad for all."""

import json

import numpy as np
import pytest

from tests.commands import CONFIGS, launch, passed
from tests.trainers.command_lab import MINE
from tests.trainers.launch.test_many_workers import saved, values

TASK = """
import gin
import numpy as np
import tensorflow as tf

from core import layers
from core.data import ArraySource
from core.task import Loss, Task, Update


@gin.configurable
class Mine(Task):
    def __init__(self, *, rng, optimizer=gin.REQUIRED):
        super().__init__()
        self.first, self.second = (layers.Linear(3, 1, rng=rng.fold(name)) for name in ("first", "second"))
        self.optimizer = optimizer

    def phases(self):
        return [
            Update("first", loss=self.first_loss, trains=self.first, optimizer=self.optimizer),
            Update("second", loss=self.second_loss, trains=self.second, optimizer=self.optimizer),
        ]

    def first_loss(self, batch, rng):
        return Loss(tf.square(self.first(batch["x"])[:, 0] - 1.0))

    def second_loss(self, batch, rng):
        return Loss(tf.square(self.second(batch["x"])[:, 0] - 1.0) * batch["times"])


@gin.configurable
def numbers():
    times = np.ones([160], np.float32)
    times[[13, 50]] = np.nan
    x = np.random.RandomState(0).randn(160, 3).astype("float32")
    return ArraySource({"x": x, "times": times}, name="numbers")
"""
WORKERS = f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}"


@pytest.mark.long
@pytest.mark.parametrize(("policy", "figure"), [("skip", "skipped_steps"), ("rollback", "rollbacks")])
def test_workers_agree_on_bad_steps_and_end_where_one_process_does(tmp_path, policy, figure):
    (tmp_path / "mine.py").write_text(TASK)
    (tmp_path / "mine.gin").write_text(MINE + "Trainer.checkpoint_every = 10\n")
    flags = ["--gin_file=mine.gin", f"--gin_param=Trainer.on_nonfinite = '{policy}'"]
    passed(*flags, "--workdir=one", cwd=tmp_path)
    passed("--workers=2", "--", *flags, WORKERS, "--workdir=many", cwd=tmp_path, run=launch)
    manifests = [saved(tmp_path / name)[0] for name in ("one", "many")]
    one, many = map(values, manifests)
    for key, value in one.items():
        if "figures" not in key:
            np.testing.assert_allclose(many[key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    assert manifests[0].examples == manifests[1].examples
    assert manifests[0].extra["passed_over"] == manifests[1].extra["passed_over"]
    last = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]) for name in ("one", "many")]
    assert last[0][figure] == last[1][figure] >= 1
