"""What the package says about itself: its version in one place, and that it has types."""

import importlib
import json
import re

from setuptools.config.pyprojecttoml import read_configuration

import core
from core.checkpoint.versions import versions
from tests.commands import CHECKOUT, CONFIGS, run

PYPROJECT = CHECKOUT / "pyproject.toml"


def test_the_version_stands_in_one_place(tmp_path):
    assert re.fullmatch(r"\d+\.\d+\.\d+", core.__version__)
    assert "version" not in read_configuration(PYPROJECT, expand=False)["project"]
    assert read_configuration(PYPROJECT)["project"]["version"] == core.__version__
    assert versions()["tapeloop"] == core.__version__
    done = run(f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--gin_param=Trainer.steps = 2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    workdir = tmp_path / "runs" / "digits_linear"
    (manifest,) = workdir.glob("checkpoints/*/manifest.json")
    for record in (workdir / "run.json", manifest):
        assert json.loads(record.read_text())["versions"]["tapeloop"] == core.__version__


def test_the_changelog_ends_at_this_version():
    headings = re.findall(r"^## (\S+)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert released[0] == core.__version__
    assert released == sorted(set(released), key=lambda x: [int(part) for part in x.split(".")], reverse=True)


def test_what_the_changelog_sends_its_readers_to_exists():
    text = (CHECKOUT / "CHANGELOG.md").read_text()
    rows = re.findall(r"^ +\| (`.*) \| (`.*) \|$", text, re.MULTILINE)
    assert rows
    for before, after in rows:
        for name in re.findall(r"`((?:core|models|trainers)\.[\w.]+)`", after):
            assert importlib.import_module(name)
        for name in re.findall(r"`(core\.[\w.]+|models\.[\w.]+|trainers\.[\w.]+)`", before):
            path = CHECKOUT / name.replace(".", "/")
            assert not path.with_suffix(".py").exists(), f"{name} is still there"
    for module, names in re.findall(r"`from ([\w.]+) import ([\w, ]+)`", text):
        assert all(hasattr(importlib.import_module(module), name) for name in names.split(", "))


def test_type_checkers_see_the_types():
    found, given = read_configuration(PYPROJECT), read_configuration(PYPROJECT, expand=False)
    assert "py.typed" in given["tool"]["setuptools"]["package-data"]["*"]
    for package in ("core", "models", "trainers"):
        assert package in found["tool"]["setuptools"]["packages"]
        assert (CHECKOUT / package / "py.typed").is_file()
