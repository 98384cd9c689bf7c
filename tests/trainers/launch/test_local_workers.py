"""Local steps of several workers, by real processes."""

import pytest

from tests.commands import CONFIGS, launch, run
from tests.trainers.launch.test_many_workers import saved, values

LINEAR, MIRRORED, LOCAL, WORKERS = (
    f"--gin_file={CONFIGS / name}.gin"
    for name in ("digits_linear", "runtime/mirrored", "runtime/local_steps", "runtime/multi_worker")
)
SHORT = [f"--gin_param=Trainer.{name}" for name in ("steps = 120", "checkpoint_every = 40", "global_batch_size = 48")]


@pytest.mark.long
def test_workers_end_where_the_replicas_of_one_process_do(tmp_path):
    """With a worker that dies within a round, on the way; all go on from the last checkpoint."""
    flags = [LINEAR, LOCAL, *SHORT]
    alone = run(*flags, MIRRORED, "--workdir=one", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    killed = launch("--workers=2", "--", *flags, WORKERS, "--workdir=many", "--kill_after_step=80", cwd=tmp_path)
    assert killed.returncode != 0
    done = launch("--workers=2", "--", *flags, WORKERS, "--workdir=many", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "going on from step" in done.stdout
    one, many = (values(saved(tmp_path / name)[0]) for name in ("one", "many"))
    assert one.keys() == many.keys()
    assert any("outer" in key for key in one)
    for key, value in one.items():
        assert many[key] == pytest.approx(value, rel=1e-5, abs=1e-5), key
