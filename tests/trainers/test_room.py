"""A task too large for this machine's memory is refused before its variables are made."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from core.data import digits
from core.distribution import one_device
from core.errors import NoRoomError
from core.layers import Linear
from core.losses import softmax_cross_entropy
from core.optimizers import adam
from core.parallel.mesh.plan import mesh
from core.task import Loss, Task, Update
from core.testing import on_virtual_cpus
from tests.commands import CONFIGS, refused
from trainers import experiment as making
from trainers.experiment import Experiment
from trainers.options.sizes import size

VALUES = 4 * (64 * 10 + 10)  # bytes of the variables below


class Small(Task):
    """Counts how often its variables are made."""

    made = 0
    looked_at = 0

    def __init__(self, *, rng):
        super().__init__()
        Small.looked_at += not (tf.executing_eagerly() or Small.made)
        self.net = Linear(64, 10, rng=rng)
        Small.made += tf.executing_eagerly()

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=adam(0.1))]

    def loss(self, batch, rng):
        logits = self.net(tf.reshape(batch["image"], [-1, 64]))
        return Loss(softmax_cross_entropy(logits, batch["label"]))


@pytest.fixture
def memory(monkeypatch):
    Small.made = Small.looked_at = 0
    return lambda count: monkeypatch.setattr(making, "machine_memory", lambda: count)


def experiment(replicas=1):
    strategy = one_device("CPU:0") if replicas == 1 else on_virtual_cpus(replicas)
    return Experiment(task=Small, train_source=digits("train"), strategy=strategy)


@pytest.mark.parametrize(
    ("bytes_there", "replicas", "says"),
    [
        (VALUES - 1, 1, "the variables of `Small` take 2.539 KiB, and this machine has 2.538 KiB"),
        (2 * VALUES - 1, 2, "the variables of `Small` take 5.078 KiB"),
        (4 * VALUES - 1, 1, "the variables, slots of optimizers and gradients of `Small` take 10.16 KiB"),
    ],
)
def test_task_is_refused_with_the_bytes_that_it_takes(bytes_there, replicas, says, memory):
    memory(bytes_there)
    with pytest.raises(NoRoomError, match=says):
        experiment(replicas)
    assert Small.made == 0


@pytest.mark.parametrize(
    ("sizes", "layouts", "held"),
    [((2, 1), [], 2 * VALUES), ((1, 2), [("net/w", "model,-")], VALUES + 4 * 10)],  # the bias is on both devices
)
def test_mesh_counts_what_each_device_holds(sizes, layouts, held, memory):
    strategy = mesh(batch=sizes[0], model=sizes[1], layouts=layouts)
    memory(held - 1)
    with pytest.raises(NoRoomError, match=f"the variables of `Small` take {size(held)}"):
        Experiment(task=Small, train_source=digits("train"), strategy=strategy)
    assert Small.made == 0


@pytest.mark.parametrize("bytes_there", [4 * VALUES + 16, making.LARGE * VALUES])
def test_task_that_fits_is_made_once(bytes_there, memory):
    memory(bytes_there)
    assert len(experiment().variables) == 7
    assert Small.made == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_trace_the_task_before_they_make_it(workers, memory, monkeypatch):
    memory(10 * making.LARGE * VALUES)
    monkeypatch.setattr(making, "joined", lambda: SimpleNamespace(cluster=SimpleNamespace(size=workers)))
    assert len(experiment().variables) == 7
    assert (Small.made, Small.looked_at > 0) == (1, workers > 1)


@pytest.mark.long
def test_seventy_billion_parameters_are_refused(tmp_path):
    says = ["the variables of `LanguageModel` take 258.9 GiB", "--mode=dry_run"]
    refused(f"--gin_file={CONFIGS / 'text_70b.gin'}", "--mode=sample", cwd=tmp_path, exit_code=8, says=says)
