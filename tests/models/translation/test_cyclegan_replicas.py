"""CycleGAN in the engine: the same numbers on any replicas, in any microbatches and placements, with active pools."""

import functools

import numpy as np
import pytest

from core.optimizers import sgd
from core.task import ONE_DEVICE
from core.testing import assemble, on_virtual_cpus
from models import CycleGan
from tests.core.engine.engine_lab import assert_same, train

ROWS, SIZE, POOL, STEPS = 4, 16, 3, 4
# A gradient of convolutions adds up thousands of terms, in another order for each number of replicas and processor.
NORMS = 1e-5
RANDOM = np.random.RandomState(0)
DATA = {name: np.tanh(RANDOM.randn(ROWS, SIZE + 2, SIZE + 2, 3)).astype("float32") for name in ("a", "b")}

TINY = functools.partial(
    CycleGan,
    image_shape=[SIZE, SIZE, 3],
    width=2,
    blocks=1,
    discriminator_channels=[3, 4],
    pool_size=POOL,
    crop_and_flip=True,
    # Steps much smaller than the weights: before a norm, small weights turn a large step into chaos.
    g_optimizer=sgd(1e-4),
    d_optimizer=sgd(1e-4),
)


@functools.cache
def reference():
    return train(TINY, DATA, 1, 1, steps=STEPS)


@pytest.mark.long
def test_four_replicas_change_nothing():
    assert STEPS * ROWS > 2 * POOL  # so that images leave the pool again
    found = train(TINY, DATA, 4, 1, steps=STEPS)
    assert_same(found, reference(), norms=NORMS)
    variables = found[0].variables
    assert variables["pool_a/count"] == POOL
    assert np.unique(variables["pool_a/images"], axis=0).shape[0] == POOL


GENERATORS_APART = {"placements": {"generators": ONE_DEVICE}, "one_device": ["g_ab", "g_ba"]}
PLACES = {
    "the generators on one device": GENERATORS_APART,
    "the discriminators on one device": {"placements": {"d_a": ONE_DEVICE, "d_b": ONE_DEVICE}},
}


@pytest.mark.long
@pytest.mark.parametrize("where", PLACES)
def test_placements_change_nothing(where):
    assert_same(train(TINY, DATA, 2, 2, steps=STEPS, **PLACES[where]), reference(), norms=NORMS)


def test_generators_on_one_device_are_on_no_other():
    assembly = assemble(TINY, on_virtual_cpus(2), **GENERATORS_APART)
    for path, variable in assembly.variables.items():
        apart = path.startswith(("task/g_", "task/pool_", "optimizer/generators/"))
        assert len(assembly.strategy.experimental_local_results(variable)) == (1 if apart else 2), path
