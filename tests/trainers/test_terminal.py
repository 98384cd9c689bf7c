"""The output of a run on a terminal and in a pipe."""

import os
import pty
import re
import threading

import pytest

from tests.commands import CONFIGS, fork_server, passed

FLAGS = (
    f"--gin_file={CONFIGS / 'digits_linear.gin'}",
    "--gin_param=Trainer.steps = 40",
    "--gin_param=Trainer.chunk_steps = 10",
    "--gin_param=Trainer.log_every = 20",
    "--gin_param=Trainer.evaluate_every = 40",
)
# A bar is drawn once a second: here once before the first line and once after it.
SLOWLY = """
import os, time
import gin
from trainers.hooks import Hook

os.environ.update(TERM="xterm-256color", COLUMNS="200")

@gin.configurable
class Slowly(Hook):
    def __call__(self, run):
        if run.step in (10, 20):
            time.sleep(1.05)
"""
ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


def read_all(terminal: int) -> str:
    """Reads a terminal until its other end is closed."""
    parts = []
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # Linux reports that the other end is closed
            return b"".join(parts).decode()
        parts.append(part)


@pytest.mark.long
def test_terminal_shows_progress_and_a_pipe_gets_the_metric_lines(tmp_path):
    (tmp_path / "slowly.py").write_text(SLOWLY)
    (tmp_path / "slowly.gin").write_text("import slowly\nTrainer.hooks = [@Slowly()]\nSlowly.every = 10\n")
    mine, theirs = pty.openpty()
    flags, errors = [*FLAGS, "--gin_file=slowly.gin", "--workdir=run"], tmp_path / "stderr"
    errors.touch()
    fork_server().begin(*flags, cwd=tmp_path, stdout=os.ttyname(theirs), stderr=str(errors))
    shown = []
    reader = threading.Thread(target=lambda: shown.append(read_all(mine)))
    reader.start()
    assert fork_server().answer(200) == 0, errors.read_text()
    os.close(theirs)
    reader.join()
    os.close(mine)
    plain = ESCAPE.sub("", shown[0])
    gauges = r"examples/s [\d,]+  utilisation \d+ %  data wait \d+ %  memory \d\.\d\d GiB"
    assert re.search(rf"━ +20/40  eta \d:\d\d  {gauges}", plain)  # before the first metric line
    assert re.search(rf"━ +30/40  eta \d:\d\d  loss \d\.\d+  {gauges}", plain)
    piped = passed(*FLAGS, "--workdir=piped", cwd=tmp_path)
    assert "\x1b" not in piped.stdout
    assert "utilisation" not in piped.stdout + (tmp_path / "run" / "metrics.jsonl").read_text()
    figures = r"loss \d\.\d+  accuracy \d\.\d+  gradient norm \d+\.\d+  learning rate +\d[\d.]*  examples/s +[\d,]+"
    for output in (plain, piped.stdout):  # the lines are the same in both
        assert len(re.findall(rf"step +[24]0/40  train  {figures}", output)) == 2
