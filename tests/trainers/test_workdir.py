"""The folder of a run, where TensorFlow's own messages are to go."""

import subprocess
import sys


def test_the_folder_is_there_before_tensorflow_starts(tmp_path):
    code = (
        "import pathlib, sys; from trainers.workdir import Workdir; "
        f"Workdir(pathlib.Path({str(tmp_path / 'run')!r})).create(); print('tensorflow' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
    assert (tmp_path / "run").is_dir()
