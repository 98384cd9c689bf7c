"""Two workers under `launch`: they end with the code of the one that failed, in a folder of any name."""

import json
import shutil

import pytest

from tests.commands import CONFIGS, launch
from tests.trainers.launch.launch_lab import planted

SETTINGS = [
    *(f"Trainer.{each}" for each in ("steps = 30", "chunk_steps = 10", "checkpoint_every = 10")),
    *(f"Trainer.{each} = None" for each in ("evaluate_every", "log_every")),
]
FLAGS = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", "runtime/multi_worker")]
ROWS = {
    "an exit": ("raise SystemExit(0)", 1, "`sys.exit(0)` was called"),
    "memory": ("bytearray(2**60)", 8, "out of memory while training"),
}


@pytest.mark.long
def test_workers_end_with_the_code_of_the_one_that_failed_and_go_on(tmp_path):
    flags = ["--", *FLAGS, planted(tmp_path, "pass", every=10, settings=SETTINGS), "--workdir=a[1]*?"]
    workdir = tmp_path / "a[1]*?"
    for name, (body, code, says) in ROWS.items():
        shutil.rmtree(workdir, ignore_errors=True)
        planted(tmp_path, f"if run.step == 20 and not is_chief(): {body}", every=10, settings=SETTINGS)
        done = launch("--workers=2", *flags, cwd=tmp_path)
        assert done.returncode == code, (name, done.stdout, done.stderr)
        assert says in done.stdout + done.stderr, name
        assert f"ended with {code}" in done.stderr, name
        result = json.loads((workdir / "result.json").read_text())
        assert (result["exit_code"], result["step"]) == (6, 20), name  # the chief's own end: it has lost the other
    planted(tmp_path, "pass", every=10, settings=SETTINGS)
    done = launch("--workers=2", *flags, cwd=tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "going on from step 10" in done.stdout
    assert json.loads((workdir / "result.json").read_text())["exit_code"] == 0
    assert "/proc/self/fd" not in done.stdout + done.stderr
