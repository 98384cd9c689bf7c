"""A worker that hangs, by real processes: who waits for it names it."""

import pytest

from tests.commands import CONFIGS, launch

HOOK = """
import os
import time

import gin

from trainers.hooks import Hook


@gin.configurable
class Hangs(Hook):
    def __call__(self, run):
        if "index\\": 1" in os.environ["TF_CONFIG"]:
            time.sleep(600)
"""
FLAGS = (
    f"--gin_file={CONFIGS / 'digits_linear.gin'}",
    f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}",
    "--gin_file=hangs.gin",
    "--workdir=run",
)


@pytest.mark.long
def test_who_waits_for_a_worker_that_hangs_says_which_and_where(tmp_path):
    (tmp_path / "hangs.py").write_text(HOOK)
    (tmp_path / "hangs.gin").write_text(
        "import hangs\nTrainer.steps = 20\nTrainer.chunk_steps = 10\nTrainer.hooks = [@Hangs()]\nHangs.every = 10\n"
        "Trainer.log_every = 10\nTrainer.evaluate_every = None\nTrainer.section_deadlines = {'hook': 8}\n"
    )
    done = launch("--workers=2", "--", *FLAGS, cwd=tmp_path)
    assert done.returncode == 6, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert "the hook `Hangs` has shown no life for 8 s" in said
    stacks = [(tmp_path / "run" / name).read_text() for name in ("stacks.txt", "stacks_1.txt")]
    assert "while worker 1" in stacks[0]
    assert "was at the hook `Hangs`" in stacks[0]
    assert "the hook `Hangs` has shown no life" in stacks[1]
