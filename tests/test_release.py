"""A release can be built, installed elsewhere, and cited."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml

import core
from tests.commands import CHECKOUT, environment

CONFIGURATION = """
Experiment.task = @MlpClassifier
Experiment.train_source = @digits()
MlpClassifier.sizes = [64, 32, 10]
MlpClassifier.optimizer = @adamw()
adamw.learning_rate = 0.003
Trainer.steps = 40
Trainer.global_batch_size = 64
"""
PARTS = ("core", "models", "trainers", "pyproject.toml", "README.md", "LICENSE")


def test_citation_names_this_release():
    cited = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text())
    (released,) = re.findall(
        rf"^## {re.escape(core.__version__)} - (\S+)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.M
    )
    assert (cited["version"], str(cited["date-released"])) == (core.__version__, released)


@pytest.mark.long
def test_wheel_and_sdist_install_and_train_in_an_empty_environment(tmp_path):
    tracked = subprocess.check_output(["git", "ls-files", "-z", *PARTS], cwd=CHECKOUT, text=True).split("\0")
    for name in filter(None, tracked):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / "source" / name)
    python, built = tmp_path / "venv" / "bin" / "python", tmp_path / "dist"
    run(sys.executable, "-m", "build", "-o", built, tmp_path / "source", cwd=tmp_path)
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    (tmp_path / "small.gin").write_text(CONFIGURATION)
    for pattern, options in (("*.whl", []), ("*.tar.gz", ["--no-deps", "--force-reinstall"])):
        (file,) = built.glob(pattern)
        run(python, "-m", "pip", "install", "-q", *options, file, cwd=tmp_path)
        run(python, "-m", "trainers.main", "--gin_file=small.gin", f"--workdir={pattern[2:]}", cwd=tmp_path)
        result = json.loads((tmp_path / pattern[2:] / "result.json").read_text())
        assert (result["step"], result["reason"]) == (40, "finished")
        where = run(python, "-c", "import core; print(core.__version__, core.__file__)", cwd=tmp_path)
        assert where.startswith(f"{core.__version__} {tmp_path / 'venv'}")


def run(*command, cwd):
    env = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout
