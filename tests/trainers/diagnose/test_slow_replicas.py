"""`--mode=diagnose` on replicas, also in several processes: transfers, late replicas, and overheads."""

import json

import pytest

from tests.commands import launch, passed
from tests.trainers.command_lab import gin
from tests.trainers.diagnose.lab import CONFIGURATION, PLANTED, adds_up, diagnose

TWO = "Experiment.strategy = @mirrored()\nmirrored.replicas = 2\nTrainer.chunk_steps = 2\n"


@pytest.mark.long
def test_a_slow_replica_is_named(tmp_path):
    said, found = diagnose(tmp_path, f"{TWO}Planted.slow_replica = 1\nPlanted.seconds = 0.1")
    assert found["verdict"]["kind"] == "straggler", said
    assert "straggler: replica 1 on `CPU:1`" in said
    (tried,) = found["tried"]
    assert tried["line"] == "mirrored.devices = ['CPU:0']"
    assert tried["times_as_fast"] > 2, said
    point = found["points"][-1]
    assert adds_up(point), said
    assert point["replicas_alone"][1] > 0.9 * 0.1 > 2 * point["replicas_alone"][0]
    scales = [(each["replicas"], each["global_batch_size"]) for each in found["points"]]
    assert scales == [(1, 256), (1, 128), (2, 256)]
    assert point["efficiency"]["same_batch"]["real"] < 0.5, said


@pytest.mark.long
def test_the_step_without_the_first_replica_is_tried_on_a_virtual_device(tmp_path):
    """The planted task sleeps there as well: its only replica is the first again."""
    said, found = diagnose(tmp_path, f"{TWO}Planted.slow_replica = 0\nPlanted.seconds = 0.1")
    assert "straggler: replica 0 on `CPU:0`" in said
    assert [tried["line"] for tried in found["tried"]] == ["mirrored.devices = ['CPU:1']"]


@pytest.mark.long
def test_huge_gradients_are_named(tmp_path):
    said, found = diagnose(tmp_path, f"{TWO}Planted.unused = 2_000_000\nPlanted.link = 0.01")
    assert found["verdict"]["kind"] == "collectives", said
    point = found["points"][-1]
    (crossing,) = point["collectives"]
    assert (crossing["phase"], crossing["bytes"] // 10**6) == ("net", 8)
    assert crossing["seconds"] > 0.9 * 0.08, said
    assert crossing["seconds"] == pytest.approx(point["parts"]["collectives"])
    assert found["tried"][0]["line"] == "Trainer.reduce_gradients_in = 'bfloat16'"


@pytest.mark.long
def test_no_bottleneck_is_named_on_replicas_without_one(tmp_path):
    said, found = diagnose(tmp_path, f"{TWO}Planted.row_seconds = 0.0004")
    assert found["verdict"]["kind"] == "none", said
    assert adds_up(found["points"][-1]), said
    assert found["replicas_share_cores"]


WORKERS = "Experiment.strategy = @multi_worker()\nTrainer.chunk_steps = 2\n"


@pytest.mark.long
def test_a_slow_worker_is_named_by_the_first(tmp_path):
    (tmp_path / "planted.py").write_text(PLANTED)
    planted = f"{WORKERS}Planted.slow_replica = 1\nPlanted.seconds = 0.1"
    flags = [gin(tmp_path, CONFIGURATION), gin(tmp_path, planted, name="planted.gin")]
    done = passed("--workers=2", "--", *flags, "--mode=diagnose", "--workdir=run", cwd=tmp_path, run=launch)
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
    # A worker that begins after the other made the folder keeps TensorFlow's messages there.
    assert made - {"native_stderr_1.log"} == {"diagnosis.json", "diagnosis.svg"}
