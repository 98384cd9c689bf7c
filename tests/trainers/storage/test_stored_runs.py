"""Runs in object storage, with the command."""

import shutil

import pytest

from tests.commands import CONFIGS, passed
from tests.trainers.resume_lab import outcome

WORDS = [
    f"--gin_file={CONFIGS}/digits_linear.gin",
    *(f"--gin_param=Trainer.{name}_every = 50" for name in ("checkpoint", "evaluate", "log")),
]
ADDRESS = "--workdir=s3://bucket/runs/mine"
FOLDER = "runs/s3/bucket/runs/mine"


@pytest.mark.long
def test_a_fresh_machine_resumes_to_the_bit(server, tmp_path):
    here, there, plain = (tmp_path / name for name in ("here", "there", "plain"))
    for folder in (here, there, plain):
        folder.mkdir()
    passed(*WORDS, ADDRESS, "--gin_param=Trainer.steps = 100", cwd=here, run=server.run)
    shutil.rmtree(here)
    printed = passed(*WORDS, ADDRESS, "--gin_param=Trainer.steps = 200", cwd=there, run=server.run).stdout
    assert "downloading `step-000000100` from `s3://bucket/runs/mine`" in printed
    assert "resuming from step 100" in printed
    passed(*WORDS, "--workdir=run", "--gin_param=Trainer.steps = 200", cwd=plain, run=server.run)
    assert outcome(there / FOLDER) == outcome(plain / "run")
    names = sorted(name for name in server.names("bucket/runs/mine") if name.startswith("checkpoints/"))
    local = (path.relative_to(there / FOLDER).as_posix() for path in (there / FOLDER).rglob("step-*/*"))
    assert names == sorted(local)
