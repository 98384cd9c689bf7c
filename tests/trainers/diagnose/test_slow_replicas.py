"""`--mode=diagnose` on several replicas: what crosses, who is late, what they make of one device's throughput."""

import pytest

from tests.trainers.diagnose.lab import diagnose

TWO = "Experiment.strategy = @mirrored()\nmirrored.replicas = 2\nTrainer.chunk_steps = 2\n"


def adds_up(point):
    return 0.9 < sum(point["parts"].values()) / point["step_seconds"] < 1.1


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
