"""What a person sees of a run on a terminal, and what a pipe gets of the same."""

import os
import pty
import re
import subprocess
import sys

from tests.commands import CONFIGS, environment, run

FLAGS = (
    f"--gin_file={CONFIGS / 'digits_linear.gin'}",
    "--gin_param=Trainer.steps = 40",
    "--gin_param=Trainer.chunk_steps = 10",
    "--gin_param=Trainer.log_every = 20",
    "--gin_param=Trainer.evaluate_every = 40",
)
# A bar is drawn once a second: here once before the first line and once behind it.
SLOWLY = """
import time
import gin
from trainers.hooks import Hook

@gin.configurable
class Slowly(Hook):
    def __call__(self, run):
        if run.step in (10, 20):
            time.sleep(1.05)
"""
ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


def read_all(terminal: int) -> str:
    """What comes out of a terminal until nobody writes to it any more."""
    parts = []
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # as Linux says that the other end is closed
            return b"".join(parts).decode()
        parts.append(part)


def test_a_terminal_shows_how_a_run_is_doing_and_a_pipe_gets_its_lines(tmp_path):
    (tmp_path / "slowly.py").write_text(SLOWLY)
    (tmp_path / "slowly.gin").write_text("import slowly\nTrainer.hooks = [@Slowly()]\nSlowly.every = 10\n")
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "trainers.main", *FLAGS, "--gin_file=slowly.gin", "--workdir=run"]
    variables = {**environment(), "TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        shown = read_all(mine)
        process.wait(200)
    os.close(mine)
    assert process.returncode == 0, process.stderr
    plain = ESCAPE.sub("", shown)
    gauges = r"examples/s [\d,]+  utilisation \d+ %  data wait \d+ %  memory \d\.\d\d GiB"
    assert re.search(rf"━ +20/40  eta \d:\d\d  {gauges}", plain)  # before the first metric line
    assert re.search(rf"━ +30/40  eta \d:\d\d  loss \d\.\d+  {gauges}", plain)
    piped = run(*FLAGS, "--workdir=piped", cwd=tmp_path)
    assert piped.returncode == 0, piped.stderr
    assert "\x1b" not in piped.stdout
    assert "utilisation" not in piped.stdout + (tmp_path / "run" / "metrics.jsonl").read_text()
    figures = r"loss \d\.\d+  accuracy \d\.\d+  gradient norm \d+\.\d+  learning rate +\d[\d.]*  examples/s +[\d,]+"
    for output in (plain, piped.stdout):  # the lines are the same in both
        assert len(re.findall(rf"step +[24]0/40  train  {figures}", output)) == 2
