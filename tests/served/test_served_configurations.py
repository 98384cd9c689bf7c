"""Every shipped task and every optimizer ends at one worker as on one device, or is refused.

With `sgd` and narrow slots they are equal to the bit, others within 1e-5: some differ by rounding.
"""

import pytest

from tests.served.subjects import DIVIDED, NARROW_SLOTS, TASKS
from tests.served.twice import differences
from tools.invariance.subjects import config_names

REFUSED = {
    "cyclegan": "`CycleGan.one_device` names `pool_a`, `pool_b`. By parameter servers",
    "digits_cyclegan": "`CycleGan.one_device` names `pool_a`, `pool_b`. By parameter servers",
    "digits_gan_by_batch_size": "`Experiment.placements` places `sample`, `d`, `g`. By parameter servers",
    "digits_gan_generator_on_one_device": "`Experiment.placements` places `sample`. By parameter servers",
    "digits_gan_sampling_on_every_replica": "`Experiment.placements` places `d`, `g`. By parameter servers",
}
# The same tasks as others', on other data or with other networks or sizes.
REPEATED = {"digits_dcgan", "digits_gan", "mnist_linear", "mnist_mlp"}
REPEATED |= {"text_markov", "text_nano_soap", "text_small", "text_tiny"}
QUICK = {"words"}  # `test_served_training` has `digits_linear` through the command
TO_THE_BIT = {"digits_linear", "batch_norm", DIVIDED, NARROW_SLOTS}


def check_same(name):
    """Compares one worker's and one device's variables: to the bit or within 1e-5."""
    found = differences(name)
    assert found.keys() == {"variables", "figures", "evaluation"}, found
    apart = {path: x for what in found.values() for path, x in what.items() if name in TO_THE_BIT or not x <= 1e-5}
    assert not apart


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in config_names() if name not in {*REFUSED, *REPEATED}])
def test_configuration_is_the_same_at_one_worker(name):
    """Takes six steps of two microbatches, with dropout if the task allows it, and an evaluation."""
    check_same(name)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in sorted(TASKS)]
)
def test_toy_task_is_the_same_at_one_worker(name):
    check_same(name)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_configuration_that_keeps_something_on_one_device_is_refused(name):
    assert differences(name)["refused"].startswith(REFUSED[name])
