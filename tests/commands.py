"""Runs the real command in a process of its own, without Keras."""

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CONFIGS = CHECKOUT / "configs"


def environment() -> dict[str, str]:
    """As the user's, but Keras can't be imported, and nothing of the test runner's leaks in."""
    kept = {key: x for key, x in os.environ.items() if not key.startswith(("TF_", "PYTEST"))}
    return {**kept, "PYTHONPATH": str(CHECKOUT / "tests" / "no_keras")}


def run(*arguments: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """`python -m trainers.main ...` in `cwd`."""
    command = [sys.executable, "-m", "trainers.main", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )


def refused(*arguments: str, cwd: Path, exit_code: int, says: list[str]) -> str:
    """The one paragraph on stderr of a run that must be refused; it has each of the texts in `says`."""
    done = run(*arguments, cwd=cwd)
    assert done.returncode == exit_code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: "), done.stderr
    assert "Traceback" not in done.stderr
    assert "\n\n" not in done.stderr.strip()
    for text in says:
        assert text in done.stderr, (text, done.stderr)
    return done.stderr
