"""Each trainable variable is trained by a phase or declared frozen."""

import pytest
import tensorflow as tf

from core import engine, layers
from core.errors import ConfigurationError
from core.module import Module
from core.optimizers import sgd
from core.random import Rng
from core.task import Compute, Loss, Task, Update
from core.task.standing import standings
from core.testing import assemble, on_virtual_cpus

ALONE = tf.distribute.OneDeviceStrategy("CPU:0")


class Parts(Task):
    """An encoder that nobody trains, a head, and everything that isn't for training by its nature."""

    def __init__(self, *, rng):
        super().__init__()
        self.encoder = layers.Linear(3, 4, rng=rng.fold("encoder"))
        self.norm = layers.BatchNorm(4)
        self.head = layers.SpectralNorm(layers.Linear(4, 1, rng=rng.fold("head")), rng=rng.fold("power"))
        self.target = tf.Variable(tf.zeros([2]), trainable=False, name="target")
        self.past = Module()
        self.past.mean = tf.Variable(0.0, name="mean")  # history, though nothing says that it isn't trainable

    def phases(self):
        return [
            Compute("recall", self.recall, state=self.past),
            Update("net", loss=self.loss, trains=[self.norm, self.head], optimizer=sgd(0.1)),
            Update("penalty", loss=self.loss, trains=[self.norm, self.head], optimizer=sgd(0.1), every=4),
        ]

    def recall(self, batch, rng):
        return {"seen": batch["x"]}, {self.past.mean.ref(): tf.reduce_mean(batch["x"])}

    def loss(self, batch, rng):
        return Loss(tf.square(self.head(self.encoder(batch["seen"]))[:, 0]))


class Frozen(Parts):
    frozen = ("encoder",)


def test_a_variable_that_no_phase_trains_is_named_with_the_remedies():
    with pytest.raises(ConfigurationError) as error:
        assemble(Parts, ALONE)
    assert str(error.value) == (
        "no phase of `Parts` trains `encoder/b`, `encoder/w`: add the module to the `trains` of `net`, `penalty`. If "
        "it is meant to stay as it is, keep the module as an attribute of the task and name it there, "
        '`frozen = ("encoder",)` in `class Parts`; a variable that nothing should ever train is made by '
        "`tf.Variable(..., trainable=False)`."
    )


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_each_variable_has_its_standing(replicas):
    assembly = assemble(Frozen, on_virtual_cpus(replicas))
    found = {s.path: (s.phases, s.frozen, s.trainable) for s in standings(assembly.task, assembly.phases)}
    both = ("net", "penalty")
    assert found.pop("encoder/w") == found.pop("encoder/b") == ((), True, True)
    trained = {path for path, standing in found.items() if standing == (both, False, True)}
    assert trained == {path for path in found if path.split("/")[-1] in ("w", "b", "offset", "scale")}
    assert len(trained) == 4
    untrained = {path for path, standing in found.items() if standing == ((), False, False)}
    assert untrained == found.keys() - trained > {"target", "past/mean", "norm/moving_mean"}


@pytest.mark.parametrize(
    ("frozen", "says"),
    [
        (("encodr",), r"`Wrong.frozen` names `encodr`, which is None; .* Did you mean `encoder`\?"),
        (("target",), "`Wrong.frozen` names `target`, .* name attributes that hold a module"),
        (("encoder", "norm"), "`Wrong.frozen` names a module that holds `norm/.*`, which phase `net` trains"),
    ],
)
def test_attributes_that_can_t_be_frozen_are_refused(frozen, says):
    wrong = type("Wrong", (Parts,), {"frozen": frozen})
    with pytest.raises(ConfigurationError, match=says):
        engine.assemble(lambda: wrong(rng=Rng.from_seed(0)), ALONE)
