"""Two workers under `launch`: they end with the code of the one that failed, in a folder of any name."""

import json
import shutil

import pytest

from tests.commands import CONFIGS, launch

HOOK = """
import gin

from core.workers import is_chief
from trainers.hooks import Hook


@gin.configurable
class Raises(Hook):
    def __call__(self, run):
        if run.step == 20 and not is_chief():
            {body}
"""
GIN = """
import raises
Trainer.hooks = [@Raises()]
Raises.every = 10
Trainer.steps = 30
Trainer.chunk_steps = 10
Trainer.checkpoint_every = 10
Trainer.evaluate_every = None
Trainer.log_every = None
"""
FLAGS = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", "runtime/multi_worker")]
ROWS = {
    "an exit": ("raise SystemExit(0)", 1, "`sys.exit(0)` was called"),
    "memory": ("bytearray(2**60)", 8, "out of memory while training"),
}


@pytest.mark.long
def test_workers_end_with_the_code_of_the_one_that_failed_and_go_on(tmp_path):
    (tmp_path / "raises.gin").write_text(GIN)
    flags = ["--", *FLAGS, "--gin_file=raises.gin", "--workdir=a[1]*?"]
    workdir = tmp_path / "a[1]*?"
    for name, (body, code, says) in ROWS.items():
        shutil.rmtree(workdir, ignore_errors=True)
        (tmp_path / "raises.py").write_text(HOOK.format(body=body))
        done = launch("--workers=2", *flags, cwd=tmp_path)
        assert done.returncode == code, (name, done.stdout, done.stderr)
        assert says in done.stdout + done.stderr, name
        assert f"ended with {code}" in done.stderr, name
        result = json.loads((workdir / "result.json").read_text())
        assert (result["exit_code"], result["step"]) == (6, 20), name  # the chief's own end: it has lost the other
    (tmp_path / "raises.py").write_text(HOOK.format(body="pass"))
    done = launch("--workers=2", *flags, cwd=tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "going on from step 10" in done.stdout
    assert json.loads((workdir / "result.json").read_text())["exit_code"] == 0
    assert "/proc/self/fd" not in done.stdout + done.stderr
