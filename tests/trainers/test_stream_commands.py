"""Commands that train on a stream: killed, refused, in two processes."""

import json

import pytest

from tests.commands import CONFIGS, launch, run

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


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder with a run that was killed after step 25."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "own.py").write_text(OWN)
    (folder / "own.gin").write_text(GIN)
    assert run("--gin_file=own.gin", "--kill_after_step=30", cwd=folder).returncode != 0
    return folder


def test_the_command_goes_on_after_a_kill(killed):
    done = run("--gin_file=own.gin", cwd=killed)
    assert done.returncode == 0, done.stderr
    assert "going on from step 30" in done.stdout
    whole = run("--gin_file=own.gin", "--workdir=whole", cwd=killed)
    assert whole.returncode == 0, whole.stderr
    manifests = [killed / name / "checkpoints/step-000000040/manifest.json" for name in ("runs/own", "whole")]
    kept = [json.loads(path.read_text()) for path in manifests]
    for name in ("variables", "extra", "config_hash"):
        assert kept[0][name] == kept[1][name]


def test_the_command_refuses_another_stream_and_says_how_to_go_on_all_the_same(killed):
    (killed / "own.py").write_text(OWN.replace("> 0", "> 1"))
    assert run("--gin_file=own.gin", "--workdir=other", "--kill_after_step=30", cwd=killed).returncode != 0
    (killed / "own.py").write_text(OWN)
    refused = run("--gin_file=own.gin", "--workdir=other", cwd=killed)
    assert refused.returncode == 4
    assert "error: The stream `noise` (`own`) doesn't repeat: of its examples number" in refused.stderr
    done = run("--gin_file=own.gin", "--workdir=other", "--gin_param=stream.replay = False", cwd=killed)
    assert done.returncode == 0, done.stderr
    assert "isn't replayed: after 960 examples" in done.stdout


def test_a_mistake_in_the_function_is_shown_with_its_traceback(killed):
    (killed / "broken.py").write_text(OWN.replace("yield", "image = image[9]; yield"))
    (killed / "broken.gin").write_text(GIN.replace("import own", "import broken"))
    done = run("--gin_file=broken.gin", cwd=killed)
    assert done.returncode == 1
    assert "IndexError" in done.stderr
    assert "in noise" in done.stderr


@pytest.mark.long
def test_two_processes_read_what_one_does_and_notice_where_they_do_not(killed):
    workers = f"--gin_file={CONFIGS / 'runtime/multi_worker.gin'}"
    done = launch("--workers=2", "--", "--gin_file=own.gin", workers, "--workdir=two", cwd=killed)
    assert done.returncode == 0, done.stdout + done.stderr
    replicas = "--gin_file=" + str(CONFIGS / "runtime/mirrored.gin")
    one = run("--gin_file=own.gin", replicas, "--gin_param=mirrored.replicas = 2", "--workdir=one", cwd=killed)
    assert one.returncode == 0, one.stderr
    manifests = [killed / name / "checkpoints/step-000000040/manifest.json" for name in ("two", "one")]
    two, one = (json.loads(path.read_text()) for path in manifests)
    assert (two["variables"], two["extra"]["stream"]) == (one["variables"], one["extra"]["stream"])
    (killed / "other.py").write_text(
        OWN.replace("[seed, epoch]", "os.getpid()").replace("import gin", "import gin, os")
    )
    (killed / "other.gin").write_text(GIN.replace("import own", "import other"))
    done = launch("--workers=2", "--", "--gin_file=other.gin", workers, "--workdir=apart", cwd=killed)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "The stream `noise` isn't the same in every process: after 320 examples" in done.stderr
