"""The first change of CONTRIBUTING.md can be made as it stands, and commands in pages name what there is."""

import importlib.util
import os
import re
import shutil
import subprocess

import pytest

from tests.commands import CHECKOUT

PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]


def test_the_first_change_passes_its_tests(tmp_path):
    text = (CHECKOUT / "CONTRIBUTING.md").read_text()
    (patch,) = re.findall(r"<!-- patch -->\n```diff\n(.*?)```", text, re.DOTALL)
    (commands,) = re.findall(r"<!-- run -->\n```sh\n(.*?)```", text, re.DOTALL)
    for name in ("core", "tests/conformance"):
        shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py", "tests/commands.py", "docs/parts.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    copy = {"PYTHONPATH": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "PYTEST_ADDOPTS": "-n 0"}
    kept = {key: x for key, x in os.environ.items() if not key.startswith("PYTEST")}
    for command in ("git apply -", commands):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=tmp_path, env={**kept, **copy}, input=patch, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])


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
