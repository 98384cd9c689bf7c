"""A worker that hangs, by real processes: the one that waits for it names it."""

import pytest

from tests.commands import CONFIGS, launch
from tests.trainers.launch.launch_lab import planted

FLAGS = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", "runtime/multi_worker")]
SETTINGS = [f"Trainer.{each}" for each in ("steps = 20", "chunk_steps = 10", "log_every = 10", "evaluate_every = None")]


@pytest.mark.long
def test_hanging_worker_is_named_with_its_section(tmp_path):
    settings = [*SETTINGS, "Trainer.section_deadlines = {'hook': 8}"]
    hangs = planted(tmp_path, "if not is_chief(): time.sleep(600)", every=10, settings=settings)
    done = launch("--workers=2", "--", *FLAGS, hangs, "--workdir=run", cwd=tmp_path)
    assert done.returncode == 6, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert "the hook `Planted` has shown no life for 8 s" in said
    stacks = [(tmp_path / "run" / name).read_text() for name in ("stacks.txt", "stacks_1.txt")]
    assert "while worker 1" in stacks[0]
    assert "was at the hook `Planted`" in stacks[0]
    assert "the hook `Planted` has shown no life" in stacks[1]
