"""Fixtures for tests of commands that start processes: forks take their place, which have imported TensorFlow.

A test with one of them can't use `tests.commands.run` or `launch`: the fork server serves one request at a time.
"""

import shlex
import sys

import pytest

from tests.commands import environment, fork_server


@pytest.fixture
def python(tmp_path):
    """Returns words that stand for `sys.executable`, for processes with `environment()` or more variables."""
    with fork_server().listening(tmp_path / "listening") as words:
        yield words


@pytest.fixture
def forks(python, tmp_path, monkeypatch):
    """Makes the code in this process start forks where it starts `sys.executable`."""
    path = tmp_path / "python"
    variables = [f"{key}={value}" for key, value in environment().items()]
    path.write_text(f'#!/bin/sh\nexec env -i {shlex.join([*variables, python[0], "-S", *python[1:]])} "$@"\n')
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))
