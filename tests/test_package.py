"""Package metadata: one place for the version, and type information."""

import importlib
import re
import subprocess
import sys

import pytest
from setuptools.config.pyprojecttoml import read_configuration

import core
from core.checkpoint.versions import versions
from tests.commands import CHECKOUT

PYPROJECT = CHECKOUT / "pyproject.toml"


def test_version_is_in_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+", core.__version__)
    assert "version" not in read_configuration(PYPROJECT, expand=False)["project"]
    assert read_configuration(PYPROJECT)["project"]["version"] == core.__version__
    assert versions()["tapeloop"] == core.__version__


def test_changelog_ends_at_this_version():
    headings = re.findall(r"^## (\S+)(?: - \d{4}-\d\d-\d\d)?$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert released[0] == core.__version__
    assert released == sorted(set(released), key=lambda x: [int(part) for part in x.split(".")], reverse=True)


def test_old_name_of_a_package_warns():
    with pytest.warns(FutureWarning, match=r"`core\.workers` is `core\.cluster` now"):
        old = importlib.reload(importlib.import_module("core.workers"))
    assert old.is_chief is importlib.import_module("core.cluster").is_chief


def test_changelog_sends_readers_to_what_exists():
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


def test_packages_are_typed():
    found, given = read_configuration(PYPROJECT), read_configuration(PYPROJECT, expand=False)
    assert "py.typed" in given["tool"]["setuptools"]["package-data"]["*"]
    for package in ("core", "models", "trainers"):
        assert package in found["tool"]["setuptools"]["packages"]
        assert (CHECKOUT / package / "py.typed").is_file()


def test_command_that_is_run_as_a_file_says_how_to_run_it():
    done = subprocess.run(
        [sys.executable, "trainers/main.py", "--help"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: `trainers/main.py` is run as a file. Run it as `python -m trainers.main`.\n"
