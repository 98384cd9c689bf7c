"""The help of every command that a person may start comes at once: TensorFlow isn't imported for it."""

import subprocess
import sys

import pytest

from tests.commands import CHECKOUT, environment

AT_EXIT = """
import atexit, runpy, sys
atexit.register(lambda: print("tensorflow" in sys.modules))
runpy.run_module("{command}", run_name="__main__", alter_sys=True)
"""
COMMANDS = [
    ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__main__")
    for path in sorted((CHECKOUT / "trainers").rglob("*.py"))
    if "run_app(parse, run)" in path.read_text() and path.name != "check.py"  # which the sweep calls, and no person
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_imports_no_tensorflow(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT.format(command=command), "--help"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("python -m trainers.")
    assert done.stdout.splitlines()[-1] == "False"
