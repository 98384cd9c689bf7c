"""Local steps: replicas that train apart, and meet once a round."""

import numpy as np
import pytest
import tensorflow as tf
from local_lab import DATA, STEPS, Local

from core import layers
from core.optimizers import adamw, sgd
from core.task import Loss, Task, Update


class Line(Task):
    """Fits a line, by rows of unlike weight where the batch says so."""

    optimizer = sgd(0.1)

    def __init__(self, *, rng):
        super().__init__()
        self.net = layers.Linear(3, 1, rng=rng.fold("net"))

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=self.optimizer)]

    def loss(self, batch, rng):
        return Loss(tf.square(self.net(batch["x"])[:, 0] - batch["y"]), weight=batch.get("weight", None))


class AdamLine(Line):
    optimizer = adamw(0.03)


def oracle(replicas, local_steps, outer):
    """The algorithm by hand, in float64: loops of the replicas' own, and the mean of where they have come to."""
    found = Local(Line, 1, None).assembly.variables
    anchor = {key: found[f"task/net/{key}"].numpy().astype("f8") for key in "wb"}
    momentum = {key: np.zeros_like(x) for key, x in anchor.items()}
    for first in range(0, STEPS, local_steps):
        ends = []
        for replica in range(replicas):
            w, b = anchor["w"].copy(), anchor["b"].copy()
            for i in range(first, first + local_steps):
                x, y = (np.split(DATA[key][i].astype("f8"), replicas)[replica] for key in "xy")
                error = 2.0 * (x @ w[:, 0] + b[0] - y) / len(y)
                w -= 0.1 * (x.T @ error)[:, None]
                b -= 0.1 * error.sum()
            ends.append({"w": w, "b": b})
        for key in anchor:
            mean = np.mean([end[key] for end in ends], axis=0)
            if outer is None:
                anchor[key] = mean
                continue
            rate, decay = outer
            way_back = anchor[key] - mean
            momentum[key] = decay * momentum[key] + way_back
            anchor[key] = anchor[key] - rate * (decay * momentum[key] + way_back)
    return anchor


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("outer", [None, (0.7, 0.9)])
def test_the_algorithm_is_that_of_the_paper(replicas, outer):
    rule = outer and sgd(outer[0], momentum=outer[1], nesterov=True)
    found = Local(Line, replicas, 3, outer=rule).train()
    for key, value in oracle(replicas, 3, outer).items():
        np.testing.assert_allclose(found[f"task/net/{key}"], value, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("replicas", [2, 4])
def test_one_step_a_round_with_the_mean_is_synchronous_sgd(replicas):
    found, expected = Local(Line, replicas, 1), Local(Line, replicas, None)
    mine, its = found.train(), expected.train()
    assert mine.keys() == its.keys()
    for path, value in its.items():
        np.testing.assert_allclose(mine[path], value, rtol=1e-6, atol=1e-6, err_msg=path)
    assert found.sums["net/weight"] == expected.sums["net/weight"]
    np.testing.assert_allclose(found.sums["net/loss"], expected.sums["net/loss"], rtol=1e-6)


@pytest.mark.parametrize("local_steps", [1, 4, 12])
def test_there_is_one_collective_a_round(local_steps):
    training = Local(AdamLine, 2, local_steps)
    training.train()
    (only,) = training.collectives
    floats = 3 * (3 + 1) + 1 + local_steps + 3  # weights and two slots, the counter, who was struck, three figures
    assert (only.phase, only.what, only.dtype, only.bytes) == ("round", "variables", "float32", 4 * floats)


def test_slots_are_averaged_with_the_weights():
    met = Local(AdamLine, 2, STEPS).train()
    apart = [
        Local(AdamLine, 1, None, data={key: x[:, part] for key, x in DATA.items()}).train()
        for part in (slice(8), slice(8, 16))
    ]
    for path, value in met.items():
        np.testing.assert_allclose(
            value, np.mean([run[path] for run in apart], axis=0), rtol=1e-5, atol=1e-6, err_msg=path
        )


def test_what_goes_on_from_between_rounds_has_the_same_bits():
    outer = sgd(0.9, momentum=0.5, nesterov=True)
    whole = Local(AdamLine, 2, 3, outer=outer).train()
    begun, resumed = Local(AdamLine, 2, 3, outer=outer), Local(AdamLine, 2, 3, outer=outer)
    for path, value in begun.train(0, 6).items():
        resumed.variables[path].assign(value)
    for path, value in resumed.train(6).items():
        assert value.tobytes() == whole[path].tobytes(), path
