"""A metric line has the learning rate of each optimizer, as it was in the line's last step."""

import pytest

from core.data import digits
from core.distribution import mirrored
from core.optimizers import adam, linear, sgd
from core.task import Loss, Task, Update
from models.classifiers.mlp import MlpClassifier
from tests.trainers.trainer_lab import make, train

SCHEDULE = linear(0.04, 0.0, steps=40)


def scheduled_mlp(*, rng):
    return MlpClassifier(rng=rng, sizes=[64, 16, 10], optimizer=sgd(SCHEDULE))


class Two(Task):
    """Two networks, of which the second is trained in every third step."""

    def __init__(self, *, rng):
        self.a = MlpClassifier(rng=rng.fold("a"), sizes=[64, 10], optimizer=adam(0.25))
        self.b = MlpClassifier(rng=rng.fold("b"), sizes=[64, 10], optimizer=sgd(SCHEDULE))

    def phases(self):
        (a,), (b,) = self.a.phases(), self.b.phases()
        return [
            Update("a", loss=a.loss, trains=a.trains, optimizer=a.optimizer),
            Update("b", loss=b.loss, trains=b.trains, optimizer=b.optimizer, every=3),
        ]

    def evaluate(self, batch) -> Loss:
        return self.a.evaluate(batch)


def rates(trainer):
    lines = train(trainer)
    return [{name: x for name, x in line[2].items() if "learning_rate" in name} for line in lines]


@pytest.mark.parametrize("replicas", [1, 2])
def test_of_one_optimizer(tmp_path, replicas):
    trainer = make(tmp_path, task=scheduled_mlp, strategy=mirrored(replicas=replicas), chunk_steps=10)
    expected = [{"learning_rate": float(SCHEDULE(step - 1))} for step in (20, 40)]
    assert rates(trainer) == expected


def test_of_several_by_phase_each_counting_its_own_updates(tmp_path):
    trainer = make(tmp_path, task=Two, source=digits("train"))
    updates = [len(range(0, steps, 3)) for steps in (20, 40)]
    assert rates(trainer) == [{"a/learning_rate": 0.25, "b/learning_rate": float(SCHEDULE(n - 1))} for n in updates]


def test_of_local_steps_and_their_outer_rule(tmp_path):
    outer = sgd(linear(1.0, 0.0, steps=8), momentum=0.9)
    strategy = mirrored(replicas=2)
    trainer = make(tmp_path, task=scheduled_mlp, strategy=strategy, local_steps=5, chunk_steps=10, outer=outer)
    found = [(x["learning_rate"], x["outer/learning_rate"]) for x in rates(trainer)]
    assert found == [(float(SCHEDULE(19)), 1.0 - 3 / 8), (float(SCHEDULE(39)), 1.0 - 7 / 8)]
