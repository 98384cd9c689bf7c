"""A run that resumes recognises its source: another one is a change of configuration."""

import numpy as np
import pytest
from trainer_lab import make, train

from core.data import ArraySource
from core.errors import ConfigurationError
from tests.toys import Line, points
from trainers.lifecycle.start import Configured, Start

ROWS = 64


def source(rows=ROWS, *, moved=0.0, dtype="float32"):
    arrays = points(rows)
    arrays["x"] = (arrays["x"] + np.float32(moved)).astype(dtype)
    return ArraySource(arrays, name="points")


def trainer_of(tmp_path, source, steps=10):
    return make(tmp_path, task=Line, source=source, steps=steps, checkpoint_every=10)


def claim(trainer, *, allow_change=False):
    """Claims the workdir as a start of the command does."""
    configured = Configured(
        {}, {}, read=dict, given=lambda: None, operative=str, note=lambda before: "", remedy="Allow it.",
        source=trainer.input.description,
    )  # fmt: skip
    try:
        return Start(trainer.workdir, configured, allow_change=allow_change).claim()
    finally:
        trainer.workdir.release()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(trainer_of(folder, source()))
    return folder


def test_run_resumes_with_its_own_source(folder):
    assert claim(trainer_of(folder, source(), steps=20)).step == 10


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (source(48), r"- examples of the source = 64\n\+ examples of the source = 48"),
        (source(80), r"\+ examples of the source = 80"),
        (source(moved=1.0), r"- fingerprint of the source = \w+\n\+ fingerprint of the source = \w+\nAllow it"),
        (source(dtype="int32"), r"- features of the source = x float32\[3\].*\n\+ features of the source = x int32"),
    ],
    ids=["fewer", "more", "moved", "integers"],
)
def test_run_that_resumes_refuses_another_source(folder, other, says, capsys):
    trainer = trainer_of(folder, source())
    trainer.input.description = other.description()
    with pytest.raises(ConfigurationError, match=says):
        claim(trainer)
    assert claim(trainer, allow_change=True).step == 10
    assert "of the source" in capsys.readouterr().out


def test_checkpoint_of_an_older_version_names_no_source(folder, monkeypatch):
    trainer = trainer_of(folder, source())
    trainer.input.description = source(48).description()
    monkeypatch.setattr("trainers.lifecycle.start.SOURCE", "unknown then")
    assert claim(trainer).step == 10
