"""Every configuration that ships is told of by a dry run, as it ships; what reads files that aren't there says so."""

import pytest

from tests.commands import CONFIGS, run
from tests.test_configs import write_idx
from tools.invariance.subjects import config_names

WITHOUT_FILES = {"cyclegan"}  # whose task says of itself what it reads


@pytest.mark.long
@pytest.mark.parametrize("name", config_names())
def test_a_dry_run_tells_of_a_configuration(name, tmp_path):
    flags = []
    if name.startswith("mnist_"):
        write_idx(tmp_path)
        flags = [f"--gin_param=mnist.directory = '{tmp_path}'"]
    done = run(f"--gin_file={CONFIGS / name}.gin", *flags, "--mode=dry_run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "parameters" in done.stdout
    assert ("the data isn't there" in done.stdout) == (name in WITHOUT_FILES)
