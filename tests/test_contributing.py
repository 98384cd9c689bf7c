"""The first change in CONTRIBUTING.md works as printed, and commands in pages name existing files."""

import importlib.util
import os
import re
import shutil
import subprocess

import pytest

from tests.commands import CHECKOUT

TEXT = (CHECKOUT / "CONTRIBUTING.md").read_text()
PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
SUITE = [
    f"tests/{name}.py" for name in ("__init__", "conftest", "commands", "deadline", "forwarded", "memory", "notes")
]


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Makes the first change in a copy of its files; returns a function that runs a command there."""
    folder = tmp_path_factory.mktemp("change")
    (patch,) = re.findall(r"<!-- patch -->\n```diff\n(.*?)```", TEXT, re.DOTALL)
    for name in ("core", "tests/conformance"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "docs/parts.md", *SUITE):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / name, folder / name)
    copy = {"PYTHONPATH": str(folder), "GIT_CEILING_DIRECTORIES": str(folder.parent), "PYTEST_ADDOPTS": "-n 0"}
    kept = {key: x for key, x in os.environ.items() if not key.startswith("PYTEST")}

    def run(command):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=folder, env={**kept, **copy}, input=patch, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])

    run("git apply -")
    return run


(COMMANDS,) = re.findall(r"<!-- run -->\n```sh\n(.*?)```", TEXT, re.DOTALL)


def test_first_change_applies_and_passes_the_linter(changed):
    linted = [line for line in COMMANDS.splitlines() if line.startswith("ruff ")]
    assert len(linted) == 2
    for line in linted:
        changed(line)


@pytest.mark.long
def test_first_change_passes_its_tests(changed):
    changed(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_what_exists(page):
    text = page.read_text()
    for module in re.findall(r"python -m (\w+(?:\.\w+)*)", text):
        assert importlib.util.find_spec(module), module
    rooms = "tests|tools|configs|deploy|examples|core|models|trainers|docs"
    for path in re.findall(rf"(?:^|\s|`)((?:{rooms})/[\w/-]+(?:\.\w+)?)", text):
        assert (CHECKOUT / path).exists(), path
    for path in re.findall(r"--gin_file=(configs/[\w/]+\.gin)", text):
        assert (CHECKOUT / path).is_file(), path
