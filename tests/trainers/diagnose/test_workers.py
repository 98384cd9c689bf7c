"""`--mode=diagnose` of several processes: they measure together, and the first tells of it."""

import json

import pytest

from tests.commands import launch
from tests.trainers.command_lab import gin
from tests.trainers.diagnose.lab import CONFIGURATION, PLANTED

TWO = "Experiment.strategy = @multi_worker()\nTrainer.chunk_steps = 2\n"


@pytest.mark.long
def test_a_slow_worker_is_named_by_the_first(tmp_path):
    (tmp_path / "planted.py").write_text(PLANTED)
    planted = f"{TWO}Planted.slow_replica = 1\nPlanted.seconds = 0.1"
    flags = [gin(tmp_path, CONFIGURATION), gin(tmp_path, planted, name="planted.gin")]
    done = launch("--workers=2", "--", *flags, "--mode=diagnose", "--workdir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "run" / "diagnosis.json").read_text())
    assert found["verdict"]["kind"] == "straggler", done.stdout
    assert "straggler: replica 1 on `worker 1 (" in found["verdict"]["sentence"]
    assert done.stdout.count("straggler: replica 1") == 1
    scales = [(point["replicas"], point["global_batch_size"]) for point in found["points"]]
    assert scales == [(1, 256), (1, 128), (2, 256)]
    together = found["points"][-1]
    assert together["replicas_alone"][1] > 0.9 * 0.1 > 2 * together["replicas_alone"][0]
    assert {crossing["phase"] for crossing in together["collectives"]} == {"net"}
    made = {path.name for path in (tmp_path / "run").iterdir()}
    # A worker that begins when the other has made the folder keeps there what TensorFlow says.
    assert made - {"native_stderr_1.log"} == {"diagnosis.json", "diagnosis.svg"}
