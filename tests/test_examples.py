"""Each example of `examples/` runs where it lies; what its page shows is `test_docs`' business."""

import json
import subprocess
import sys

import pytest

from tests.commands import CHECKOUT, environment, run

EXAMPLES = sorted(path for path in (CHECKOUT / "examples").iterdir() if path.is_dir())
LEARNT = {  # by 60 steps
    "spiral": lambda figures: figures["accuracy"] > 0.5,
    "inner_loop": lambda figures: figures["loss"] < 0.9 * figures["unadapted"],
}
names = pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: path.name)


@names
def test_an_example_trains_by_the_command(folder, tmp_path):
    done = run(f"--gin_file={folder.name}.gin", "--gin_param=steps = 60", f"--workdir={tmp_path}", cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["step"], result["reason"]) == (60, "finished")
    assert LEARNT[folder.name](result["evaluation"])


@names
@pytest.mark.long  # the example's page runs the same tests, in a folder of their own
def test_the_tests_of_an_example_pass(folder):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
