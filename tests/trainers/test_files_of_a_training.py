"""Counts the files of `trainers/` that a training imports before its first checkpoint."""

from pathlib import Path

import pytest

from tests.commands import CONFIGS, run_process

# The command, its process and its folder take 12 files; the audit of the gin files and the run's identity 9; the
# experiment and the settings with their checks 7; evaluation and the base of hooks 3; the trainer and the parts of its
# loop 9; the session, its mode, the run's start and its end 4. A training calls each of them.
MOST = 44
# A module that the configuration imports: it lists the imported modules when the first checkpoint begins.
LISTING = """
import sys
from core.checkpoint import Saves

begin = Saves.begin

def listing(*args, **kwargs):
    files = {name: module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "trainers"}
    with open("files.txt", "w") as file:
        print(*sorted(files.values()), sep="\\n", file=file)
    Saves.begin = begin
    return begin(*args, **kwargs)

Saves.begin = listing
"""


@pytest.mark.long
def test_training_passes_through_few_files(tmp_path: Path) -> None:
    (tmp_path / "listing.py").write_text(LISTING)
    bindings = ["import listing", "Trainer.steps = 20", "Trainer.checkpoint_every = 10"]
    given = [f"--gin_file={CONFIGS / 'digits_mlp.gin'}", *(f"--gin_param={text}" for text in bindings)]
    done = run_process(*given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in (tmp_path / "files.txt").read_text().splitlines()]
    read = [f"{path.parent.name}/{path.name}" for path in files if len(path.read_text().splitlines()) > 1]
    print(*read, sep="\n")  # without packages' own files of one line
    assert "trainers/session.py" in read
    assert len(read) + 1 <= MOST, read  # `main.py` is imported as `__main__`
