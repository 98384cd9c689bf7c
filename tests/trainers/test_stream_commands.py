"""Commands that train on a stream: resumed, refused, in two processes."""

import pytest

from tests.commands import CONFIGS, launch, passed, refused
from tests.trainers.resume_lab import killed_after, manifest_of

OWN = """
import gin
import numpy as np

@gin.configurable
def noise(seed, epoch, size=1000):
    random = np.random.RandomState([seed, epoch])
    for _ in range(size):
        image = random.normal(size=[8, 8, 1])
        yield {"image": image, "label": int(image.sum() > 0)}
"""
GIN = """
import own
import models

Experiment.task = @MlpClassifier
MlpClassifier.sizes = [64, 2]
MlpClassifier.optimizer = @sgd()
sgd.learning_rate = 0.1
Experiment.train_source = @stream()
stream.make = @noise
stream.shuffle = 64
Trainer.steps = 40
Trainer.global_batch_size = 32
Trainer.log_every = 10
Trainer.checkpoint_every = 10
"""


def write(folder, *changes, name="own"):
    text = OWN
    for old, new in changes:
        text = text.replace(old, new)
    (folder / f"{name}.py").write_text(text)
    (folder / f"{name}.gin").write_text(GIN.replace("import own", f"import {name}"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns the workdir of an undisturbed run."""
    folder = tmp_path_factory.mktemp("streams")
    write(folder)
    passed("--gin_file=own.gin", "--workdir=whole", cwd=folder)
    return folder / "whole"


@pytest.mark.long
def test_command_resumes_a_stream_exactly(whole, tmp_path):
    write(tmp_path)
    killed_after(whole, 30, tmp_path)
    done = passed("--gin_file=own.gin", "--workdir=killed", cwd=tmp_path)
    assert "resuming from step 30" in done.stdout
    for name in ("variables", "extra", "config_hash"):
        assert manifest_of(tmp_path / "killed", 40)[name] == manifest_of(whole, 40)[name]


def test_command_refuses_another_stream_and_names_the_function(whole, tmp_path):
    write(tmp_path, ("> 0", "> 1"))
    killed_after(whole, 30, tmp_path)
    says = ["The stream `noise` (`own`) doesn't repeat: of its examples number", "replay=False"]
    refused("--gin_file=own.gin", "--workdir=killed", cwd=tmp_path, exit_code=4, says=says)


@pytest.mark.long
def test_two_processes_read_the_examples_of_one_and_notice_a_difference(tmp_path):
    write(tmp_path)
    workers, replicas = (f"--gin_file={CONFIGS / 'runtime' / name}.gin" for name in ("multi_worker", "mirrored"))
    done = passed("--workers=2", "--", "--gin_file=own.gin", workers, "--workdir=two", cwd=tmp_path, run=launch)
    one = passed("--gin_file=own.gin", replicas, "--gin_param=mirrored.replicas = 2", "--workdir=one", cwd=tmp_path)
    two, one = (manifest_of(tmp_path / name, 40) for name in ("two", "one"))
    assert (two["variables"], two["extra"]["stream"]) == (one["variables"], one["extra"]["stream"])
    write(tmp_path, ("[seed, epoch]", "os.getpid()"), ("import gin", "import gin, os"), name="other")
    done = launch("--workers=2", "--", "--gin_file=other.gin", workers, "--workdir=apart", cwd=tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "The stream `noise` isn't the same in every process: after 320 examples" in done.stderr
