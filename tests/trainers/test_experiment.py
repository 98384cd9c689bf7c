"""An experiment places phases and networks of any task, from a gin file or from Python."""

import numpy as np
import pytest
import tensorflow as tf

from core.data import ArraySource
from core.errors import ConfigurationError
from core.module import Module
from core.optimizers import sgd
from core.random import Rng
from core.task import EVERY_REPLICA, ONE_DEVICE, Compute, Loss, Task, Update
from core.testing import on_virtual_cpus
from models.classifiers.mlp import Mlp
from tests.commands import CHECKOUT, CONFIGS
from trainers import configurables as configurables  # registers them
from trainers import hooks
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.gin_audit.audit import read
from trainers.settings import Settings

SOURCE = ArraySource({"x": np.zeros([4, 2], "float32")}, name="lab")


class Remembering(Task):
    """Two networks, of which one learns, and a history."""

    frozen = ("g",)

    def __init__(self, *, rng):
        super().__init__()
        self.g, self.d = Mlp([2, 2], rng=rng.fold("g")), Mlp([2, 2], rng=rng.fold("d"))
        self.history = Module()
        self.history.mean = tf.Variable(0.0, trainable=False, name="mean")
        self.width = 2

    def phases(self):
        return [
            Compute("recall", self.recall, state=self.history),
            Compute("sample", lambda batch, rng: {"fake": self.g(batch["x"])}),
            Update("d", loss=self.loss, trains=self.d, optimizer=sgd(0.1)),
        ]

    def recall(self, batch, rng):
        return {"seen": batch["x"]}, {self.history.mean.ref(): tf.reduce_mean(batch["x"])}

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(tf.square(self.d(batch["fake"])), 1))


def experiment(**settings):
    return Experiment(task=Remembering, train_source=SOURCE, strategy=on_virtual_cpus(2), **settings)


def test_gin_file_places_the_phases_of_any_task():
    params = [
        "Experiment.placements = {'sample': @on_one_device(), 'd': @when_batch_at_least()}",
        "when_batch_at_least.rows = 64",
        "Experiment.one_device = ['g']",
    ]
    configuration = read([str(CONFIGS / "digits_gan.gin")], params, search=[CHECKOUT])
    configuration.bind([Experiment, Settings, Evaluator], required=[Experiment, Settings], register=hooks.register)
    made = Experiment(strategy=on_virtual_cpus(2))
    placements = {phase.name: phase.placement for phase in made.assembly.phases}
    assert placements["sample"] == ONE_DEVICE
    assert placements["g"] == EVERY_REPLICA
    assert [placements["d"].on_every_replica(rows) for rows in (63, 64)] == [False, True]
    copies = {path: len(made.strategy.experimental_local_results(v)) for path, v in made.variables.items()}
    assert {path.split("/")[1] for path, n in copies.items() if n == 1} == {"g"}  # its optimizer's slots among them
    assert any(path.startswith("optimizer/g/") for path, n in copies.items() if n == 1)


def test_wrong_kind_of_placement_is_refused_before_anything_is_made():
    params = ["Experiment.placements = {'sample': 'one_device'}"]
    configuration = read([str(CONFIGS / "digits_gan.gin")], params, search=[CHECKOUT])
    with pytest.raises(ConfigurationError, match=r"`placements` is given .* `Mapping\[str, Placement\]` is wanted"):
        configuration.bind([Experiment, Settings, Evaluator], required=[Experiment, Settings], register=hooks.register)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"placements": {"sampel": ONE_DEVICE}}, r"names the phase `sampel`; the task has .* Did you mean `sample`\?"),
        ({"placements": {"recall": EVERY_REPLICA}}, "phase `recall` .* keeps history"),
        ({"one_device": ["gg"]}, "`Experiment.one_device` names `gg`, which is None; .* `Remembering` has `g`, `d`"),
        ({"one_device": ["width"]}, "names `width`, which is 2"),
    ],
)
def test_unusable_placements_are_refused(settings, says):
    with pytest.raises(ConfigurationError, match=says):
        experiment(**settings)


def without_rng():
    return Remembering(rng=Rng.from_seed(0))


def network(*, rng):
    return Mlp([2, 2], rng=rng)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("Remembering", "is 'Remembering'; give the class of a task, or a function of `rng` that makes one"),
        (without_rng, r"is `without_rng`, which takes no `rng`. Write `def __init__\(self, \*, rng, ...\)`"),
        (network, r"is `network`, which made Mlp\(6 parameters\); it must make a `core.task.Task`"),
    ],
)
def test_factory_that_makes_no_task_from_the_seed_is_refused(task, says):
    with pytest.raises(ConfigurationError, match=f"^`Experiment.task` {says}"):
        Experiment(task=task, train_source=SOURCE)


def test_task_that_is_made_already_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"^`Experiment\.task` is a finished `Remembering`; give the class itself"
    ):
        Experiment(task=without_rng(), train_source=SOURCE)


def test_second_task_is_placed_as_the_first():
    made = experiment(one_device=["g"], placements={"sample": ONE_DEVICE, "recall": ONE_DEVICE})
    for task in (made.task, made.make_task()):
        assert isinstance(task.d.trainable_variables[0], tf.distribute.DistributedValues)
        assert not isinstance(task.g.trainable_variables[0], tf.distribute.DistributedValues)
