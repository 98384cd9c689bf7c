"""`--mode=summary`: each variable, who trains it, and where it lives."""

import pytest
from command_lab import write_task

from tests.commands import CONFIGS, run


def cells(text):
    """The cells of the table's rows, without their frames."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]


def test_trained_frozen_and_untrained_variables_are_told_apart(tmp_path):
    flag = write_task(tmp_path, init="self.eye, self.count = Net(), tf.Variable(0.0, trainable=False)")
    source = (tmp_path / "mine.py").read_text()
    done = run(flag, "--mode=summary", cwd=tmp_path)
    assert done.returncode == 2
    assert "no phase of `Mine` trains `eye/unused`, `eye/w`" in done.stderr
    (tmp_path / "mine.py").write_text(source.replace("class Mine(Task):", 'class Mine(Task):\n    frozen = ("eye",)'))
    done = run(flag, "--mode=summary", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {row[0]: row[4:] for row in cells(done.stdout)} == {
        "count": ["untrained", "every replica"],
        "eye/unused": ["frozen", "every replica"],
        "eye/w": ["frozen", "every replica"],
        "net/unused": ["net", "every replica"],
        "net/w": ["net", "every replica"],
    }
    assert "5 parameters trained, 5 frozen; 1 variables that aren't for training" in done.stdout


@pytest.mark.long
def test_a_network_on_one_device_is_said_to_be_there(tmp_path):
    files = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_gan_generator_on_one_device", "runtime/mirrored")]
    done = run(*files, "--mode=summary", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    where = {(row[0].split("/")[0], *row[4:]) for row in cells(done.stdout) if len(row) == 6}
    assert where >= {("g", "g", "one device"), ("d", "d", "every replica")}
