"""A metric line has the learning rate of each optimizer in the line's last step."""

from core.data import digits
from core.distribution import mirrored
from core.optimizers import adam, linear, sgd
from core.task import Loss, Task, Update
from models.classifiers.mlp import MlpClassifier
from tests.trainers.trainer_lab import make, train

SCHEDULE = linear(0.04, 0.0, steps=20)


def scheduled_mlp(*, rng):
    return MlpClassifier(rng=rng, sizes=[64, 10], optimizer=sgd(SCHEDULE))


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
    return [{name: x for name, x in line[2].items() if "learning_rate" in name} for line in train(trainer)]


def test_metric_line_has_the_rate_on_two_replicas(tmp_path):
    trainer = make(tmp_path, task=scheduled_mlp, strategy=mirrored(replicas=2), steps=20, log_every=10)
    assert rates(trainer) == [{"learning_rate": float(SCHEDULE(step - 1))} for step in (10, 20)]


def test_metric_line_has_the_rate_of_each_phase_which_counts_its_own_updates(tmp_path):
    trainer = make(tmp_path, task=Two, source=digits("train"), steps=20, log_every=10)
    updates = [len(range(0, steps, 3)) for steps in (10, 20)]
    assert rates(trainer) == [{"a/learning_rate": 0.25, "b/learning_rate": float(SCHEDULE(n - 1))} for n in updates]


def test_metric_line_has_the_rates_of_local_steps_and_their_outer_optimizer(tmp_path):
    outer = sgd(linear(1.0, 0.0, steps=8), momentum=0.9)
    settings = {"local_steps": 5, "outer": outer, "steps": 20, "log_every": 10}
    trainer = make(tmp_path, task=scheduled_mlp, strategy=mirrored(replicas=2), **settings)
    found = [(x["learning_rate"], x["outer/learning_rate"]) for x in rates(trainer)]
    assert found == [(float(SCHEDULE(9)), 1.0 - 1 / 8), (float(SCHEDULE(19)), 1.0 - 3 / 8)]
