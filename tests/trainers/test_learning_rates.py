"""A metric line has the learning rate of each optimizer in the line's last step."""

import pytest

from core.distribution import mirrored
from core.optimizers import adam, linear, sgd
from core.task import Update
from tests.toys import Line, Pair
from tests.trainers.trainer_lab import make, train

SCHEDULE = linear(0.04, 0.0, steps=20)


class Scheduled(Line):
    optimizer = sgd(SCHEDULE)


class Two(Pair):
    """Trains the second network in every third step."""

    def phases(self):
        first, second = self.first, self.second
        return [
            Update("a", loss=self.first_loss, trains=first, optimizer=adam(0.25)),
            Update("b", loss=self.second_loss, trains=second, optimizer=sgd(SCHEDULE), every=3),
        ]


def rates(tmp_path, task, **settings):
    lines = train(make(tmp_path, task=task, steps=20, log_every=10, **settings))
    return [{name: x for name, x in line[2].items() if "learning_rate" in name} for line in lines]


@pytest.mark.long
def test_metric_line_has_the_rate_of_each_phase_which_counts_its_own_updates(tmp_path):
    updates = [len(range(0, steps, 3)) for steps in (10, 20)]
    expected = [{"a/learning_rate": 0.25, "b/learning_rate": float(SCHEDULE(n - 1))} for n in updates]
    assert rates(tmp_path, Two, strategy=mirrored(replicas=2)) == expected


@pytest.mark.long
def test_metric_line_has_the_rates_of_local_steps_and_their_outer_optimizer(tmp_path):
    outer = sgd(linear(1.0, 0.0, steps=8), momentum=0.9)
    lines = rates(tmp_path, Scheduled, strategy=mirrored(replicas=2), local_steps=5, outer=outer)
    found = [(x["learning_rate"], x["outer/learning_rate"]) for x in lines]
    assert found == [(float(SCHEDULE(9)), 1.0 - 1 / 8), (float(SCHEDULE(19)), 1.0 - 3 / 8)]
