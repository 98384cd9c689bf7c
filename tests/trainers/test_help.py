"""Every command answers flags such as `--help` quickly: it doesn't import TensorFlow for that."""

import pytest

from tests.commands import CHECKOUT, python

AT_EXIT = """
import atexit, runpy, sys
atexit.register(lambda: print([name for name in ("tensorflow", "gin", "boto3") if name in sys.modules]))
runpy.run_module("{command}", run_name="__main__", alter_sys=True)
"""
COMMANDS = [
    ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__main__")
    for path in sorted((CHECKOUT / "trainers").rglob("*.py"))
    if "run_app(parse, run)" in path.read_text() and path.name != "check.py"  # which only the sweep calls
]
MORE = [("trainers.main", flag) for flag in ("--helpfull", "--hlep")]


@pytest.mark.parametrize(("command", "flag"), [*((command, "--help") for command in COMMANDS), *MORE])
def test_flags_are_answered_without_tensorflow(command, flag, tmp_path):
    done = python("-c", AT_EXIT.format(command=command), flag, cwd=tmp_path)
    *text, imported = done.stdout.splitlines()
    assert "tensorflow" not in imported
    assert "boto3" not in imported  # of TensorBoard's writer and of storage
    assert imported == "[]" or command not in ("trainers.main", "trainers.launch")
    if flag == "--hlep":
        assert (done.returncode, text) == (2, [])
        assert done.stderr.startswith("error: there is no flag `--hlep`. Did you mean `--help`?")
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert text[0].startswith("python -m trainers.")
