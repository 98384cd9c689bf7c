"""Runs of every kind, on one device and on many, are loaded onto one, and evaluate to the metrics that they wrote."""

import json
import warnings

import numpy as np
import pytest

import trainers
from tests.commands import CONFIGS, passed


@pytest.mark.long
@pytest.mark.parametrize("name", ["digits_ddpm", "digits_gan", "digits_vae", "text_markov"])
def test_loaded_run_of_each_kind_evaluates_as_it_did(name, tmp_path):
    few = [f"--gin_param={x}" for x in ("Trainer.steps = 2", "Trainer.chunk_steps = None", "Trainer.hooks = []")]
    passed(f"--gin_file={CONFIGS / name}.gin", *few, "--workdir=run", cwd=tmp_path)
    _same(tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("mesh", []),
        ("local_steps", ["Trainer.local_steps = 2", "Trainer.evaluate_every = None", "Trainer.log_every = None"]),
    ],
)
def test_run_on_many_devices_is_loaded_onto_one(name, more, tmp_path):
    files = [f"--gin_file={CONFIGS / each}.gin" for each in ("digits_gan", f"runtime/{name}")]
    few = [f"--gin_param={x}" for x in ("Trainer.steps = 4", "Trainer.hooks = []", *more)]
    passed(*files, *few, "--workdir=run", cwd=tmp_path)
    _same(tmp_path / "run", rtol=1e-6)  # sums over replicas have another order


def _same(path, rtol=0.0):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = trainers.load(path)
    told, figures = json.loads((path / "result.json").read_text())["evaluation"], one.evaluate()
    assert figures.keys() == told.keys()
    np.testing.assert_allclose([figures[name] for name in told], [*told.values()], rtol=rtol)
