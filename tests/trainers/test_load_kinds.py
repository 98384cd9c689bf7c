"""Runs on one device and on many are loaded onto one, and evaluate to the metrics that they wrote."""

import json
import warnings

import numpy as np
import pytest

import trainers
from tests.commands import CONFIGS, passed

FEW = ("steps = 2", "chunk_steps = None", "hooks = []", "global_batch_size = 8", "log_every = None")
TEXT = ("LanguageModel.size = 8", "LanguageModel.num_layers = 1", "context = 8")


@pytest.mark.long
@pytest.mark.parametrize(
    ("files", "more", "rtol"),
    [
        (["text_markov"], TEXT, 0.0),
        (["digits_linear", "runtime/mesh"], (), 1e-6),  # sums over replicas have another order
        (["digits_gan", "runtime/local_steps"], ("Trainer.local_steps = 2", "Trainer.evaluate_every = None"), 1e-6),
    ],
)
def test_loaded_run_evaluates_as_it_did(files, more, rtol, tmp_path):
    few = [f"--gin_param={x}" for x in (*(f"Trainer.{each}" for each in FEW), *more)]
    passed(*(f"--gin_file={CONFIGS / each}.gin" for each in files), *few, "--workdir=run", cwd=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = trainers.load(tmp_path / "run")
    told, figures = json.loads((tmp_path / "run" / "result.json").read_text())["evaluation"], one.evaluate()
    assert figures.keys() == told.keys()
    np.testing.assert_allclose([figures[name] for name in told], [*told.values()], rtol=rtol)
