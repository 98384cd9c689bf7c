"""`--mode=summary`: each variable, the phase that trains it, and its place."""

from collections import Counter

import pytest
from command_lab import write_task

from tests.commands import CONFIGS, passed, run


def cells(text):
    """Returns the cells of the table's rows, without their frames."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]


def test_summary_tells_trained_frozen_and_untrained_variables_apart(tmp_path):
    flag = write_task(tmp_path, init="self.eye, self.count = Net(), tf.Variable(0.0, trainable=False)")
    source = (tmp_path / "mine.py").read_text()
    done = run(flag, "--mode=summary", cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "runs").exists()
    assert "no phase of `Mine` trains `eye/unused`, `eye/w`" in done.stderr
    (tmp_path / "mine.py").write_text(source.replace("class Mine(Task):", 'class Mine(Task):\n    frozen = ("eye",)'))
    done = passed(flag, "--mode=summary", cwd=tmp_path)
    assert {row[0]: row[4:] for row in cells(done.stdout)} == {
        "count": ["untrained", "every replica"],
        "eye/unused": ["frozen", "every replica"],
        "eye/w": ["frozen", "every replica"],
        "net/unused": ["net", "every replica"],
        "net/w": ["net", "every replica"],
    }
    assert "5 parameters trained, 5 frozen; 1 variables that aren't for training" in done.stdout


@pytest.mark.long
def test_summary_names_a_network_on_one_device(tmp_path):
    files = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_gan_generator_on_one_device", "runtime/mirrored")]
    done = passed(*files, "--mode=summary", cwd=tmp_path)
    where = {(row[0].split("/")[0], *row[4:]) for row in cells(done.stdout) if len(row) == 6}
    assert where >= {("g", "g", "one device"), ("d", "d", "every replica")}


@pytest.mark.long
def test_summary_on_a_mesh_has_layouts_and_bytes(tmp_path):
    files = [f"--gin_file={CONFIGS / name}.gin" for name in ("text_tiny", "runtime/mesh_transformer")]
    done = passed(*files, "--mode=summary", cwd=tmp_path)
    where = Counter(row[5] for row in cells(done.stdout) if len(row) == 6 and row[0].startswith("net/"))
    # Each of two blocks has query, key, value and up, with their biases; out and down.
    assert (where["mesh:"], where["every"]) == (0, 0), "the table is too narrow for this test"
    assert where["mesh: -,model"] == where["mesh: model"] == 8
    assert where["mesh: model,-"] == 4
    size, hidden, parameters = 32, 128, 34_720
    cut = 2 * (4 * size * size + 3 * size + 2 * size * hidden + hidden)
    learnt = 4 * (parameters - cut // 2)  # and two slots of each, and the optimizer's step
    said = " ".join(done.stdout.split())
    assert f"each holds {learnt:,} bytes of the task's variables and {2 * learnt + 8:,} of the optimizers'" in said
    assert f"one device alone would hold {3 * 4 * parameters + 8:,}" in said
