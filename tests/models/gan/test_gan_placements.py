"""A GAN's numbers are the same on any number of replicas, in any microbatches and placements."""

import pytest

from core.errors import ConfigurationError
from core.losses import adversarial as games
from core.task import ONE_DEVICE
from core.testing import assemble, on_virtual_cpus
from models import BatchNormGan
from tests.core.engine.engine_lab import assert_same, train
from tests.models.gan.gan_lab import DATA, SPECTRAL, made, tiny_dcgan

STEPS = {
    "wasserstein, generator on one device": {
        "game": games.wasserstein(),
        "networks": SPECTRAL,
        "d_steps": 2,
        "placements": {"sample": ONE_DEVICE},
        "one_device": ["g"],
    },
    "relativistic, sampling on every replica": {
        "game": games.relativistic(),
        "r1": 0.1,
        "r2": 0.1,
        "gradient_penalty": 10.0,
        "num_classes": 10,
        "placements": {"d": ONE_DEVICE, "g": ONE_DEVICE},
    },
}


@pytest.mark.long
@pytest.mark.parametrize("settings", STEPS.values(), ids=STEPS)
def test_replicas_microbatches_and_placements_change_nothing(settings):
    where = {name: x for name, x in settings.items() if name in ("placements", "one_device")}
    task = made(**{name: x for name, x in settings.items() if name not in where})
    assert_same(train(task, DATA, 2, 2, steps=4, **where), train(task, DATA, 1, 1, steps=4))


def test_unknown_phase_cannot_be_placed():
    task = made(BatchNormGan, networks=tiny_dcgan("batch"))
    with pytest.raises(ConfigurationError, match=r"`Experiment.placements` names the phase `sample`; .* `d`, `g`"):
        assemble(task, on_virtual_cpus(1), placements={"sample": ONE_DEVICE})
