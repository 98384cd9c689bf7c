"""A release can be built, installed elsewhere, and cited."""

import json
import re
import shutil
import subprocess
import sys
from email import message_from_bytes
from importlib.metadata import requires

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
PACKAGES = ("core", "models", "trainers")
FOLDERS = tuple(f"{name}/" for name in PACKAGES)
WHERE = f"from importlib.util import find_spec; print(*(find_spec(name).origin for name in {PACKAGES}))"
PARTS = (*PACKAGES, "pyproject.toml", "README.md", "LICENSE")


def test_citation_names_this_release():
    cited = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text())
    (released,) = re.findall(
        rf"^## {re.escape(core.__version__)} - (\S+)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.M
    )
    assert (cited["version"], str(cited["date-released"])) == (core.__version__, released)


@pytest.mark.long
def test_wheel_and_sdist_install_the_same_files_and_train_from_them(tmp_path):
    """`.ci/run` installs the requirements alone; here they come from the tests' environment."""
    listed = subprocess.check_output(["git", "ls-files", "-z", *PARTS], cwd=CHECKOUT, text=True)
    tracked = listed.rstrip("\0").split("\0")
    for name in tracked:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / "source" / name)
    run("-m", "build", "-o", tmp_path / "dist", tmp_path / "source", cwd=tmp_path)
    (wheel,), (sdist,) = (list((tmp_path / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    one, other = (installed(file, tmp_path / name) for file, name in ((wheel, "wheel"), (sdist, "sdist")))
    assert one == other
    assert {name: (CHECKOUT / name).read_bytes() for name in tracked if name.startswith(FOLDERS)} == {
        name: content for name, content in one.items() if name.startswith(FOLDERS)
    }
    (metadata,) = (message_from_bytes(content) for name, content in one.items() if name.endswith("/METADATA"))
    assert metadata["Version"] == core.__version__
    assert sorted(metadata.get_all("Requires-Dist")) == sorted(requires("tapeloop"))
    (tmp_path / "small.gin").write_text(CONFIGURATION)
    wheels = {"cwd": tmp_path, "first": tmp_path / "wheel"}
    assert run("-c", WHERE, **wheels).split() == [str(tmp_path / "wheel" / name / "__init__.py") for name in PACKAGES]
    run("-m", "trainers.main", "--gin_file=small.gin", "--workdir=run", **wheels)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["step"], result["reason"]) == (40, "finished")


def installed(file, folder):
    """Installs a file's package into a folder; returns the contents by name, without records of the installation."""
    run("-m", "pip", "install", "-q", "--no-deps", "--no-compile", f"--target={folder}", file, cwd=folder.parent)
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {name: (folder / name).read_bytes() for name in names if not name.endswith(("RECORD", "direct_url.json"))}


def run(*arguments, cwd, first=None):
    """Runs this Python with the packages of a folder before all others; returns its output."""
    env = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**env, "PYTHONPATH": str(first)} if first else env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout
