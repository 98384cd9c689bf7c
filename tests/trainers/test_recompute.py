"""`Experiment.recompute`: runs by the command, their exports and their resumption."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from core.data import digits
from core.optimizers import sgd
from models.classifiers.mlp import MlpClassifier
from tests.commands import CONFIGS, passed, refused
from trainers.experiment import Experiment
from trainers.export.program import Program

MLP = (f"--gin_file={CONFIGS / 'digits_mlp.gin'}", "--workdir=run")
SHORT = [f"--gin_param=Trainer.{each} = 10" for each in ("chunk_steps", "log_every")]
SHORT += ["--gin_param=Trainer.evaluate_every = None", "--gin_param=Experiment.eval_source = None"]
RECOMPUTE = "--gin_param=Experiment.recompute = {'net/layers/*': 'every_other'}"


def losses(folder):
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if line["split"] == "train"}


@pytest.mark.long
def test_run_resumes_without_recomputation_and_has_the_same_losses(tmp_path):
    for name in ("recomputed", "stored"):
        (tmp_path / name).mkdir()
    passed(*MLP, *SHORT, RECOMPUTE, "--gin_param=Trainer.steps = 10", cwd=tmp_path / "recomputed")
    for name in ("recomputed", "stored"):
        done = passed(*MLP, *SHORT, "--gin_param=Trainer.steps = 20", cwd=tmp_path / name)
        assert ("resuming from step 10" in done.stdout) == (name == "recomputed")
    assert losses(tmp_path / "recomputed") == pytest.approx(losses(tmp_path / "stored"), rel=1e-6)


def test_export_of_a_recomputing_task():
    task = functools.partial(MlpClassifier, sizes=[64, 8, 10], optimizer=sgd(0.1))
    image, found = digits().gather(tf.range(4, dtype=tf.int64))["image"], []
    for recompute in ({"net/layers/*": "every_other"}, {}):
        experiment = Experiment(task=task, train_source=digits(), recompute=recompute)
        _, functions = Program(experiment.task, experiment.train_source.spec).exported("float32")
        found.append(functions["classify"](image=image)["logits"])
    np.testing.assert_array_equal(*found)


def test_pattern_without_a_match_is_refused(tmp_path):
    says = ["`Experiment.recompute` has the pattern 'net/layer/*', which matches no module", "net/layers/0"]
    refused(*MLP, "--gin_param=Experiment.recompute = ['net/layer/*']", cwd=tmp_path, exit_code=2, says=says)
