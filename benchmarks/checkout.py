"""Temporary checkouts of other revisions, to compare against."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def checkout_of(revision: str, scratch: Path) -> Iterator[Path]:
    """Checks the files of `revision` out into a folder of `scratch`, and removes them at the end."""
    folder = scratch / revision.replace("/", "_")
    command = ["git", "worktree", "add", "--detach", "--quiet", str(folder), revision]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: `--against` is {revision!r}: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=CHECKOUT, check=True)
