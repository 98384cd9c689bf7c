"""CycleGAN in the engine: the same numbers on any number of replicas and microbatches, with its pools in play."""

import functools

import numpy as np
import pytest

from core.optimizers import sgd
from models import CycleGan
from tests.core.engine.engine_lab import assert_same, train

ROWS, SIZE, POOL, STEPS = 4, 16, 3, 4
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
    # Steps much smaller than the weights: behind a norm, small weights turn a large step into chaos.
    g_optimizer=sgd(1e-4),
    d_optimizer=sgd(1e-4),
)


@functools.cache
def reference():
    return train(TINY, DATA, 1, 1, steps=STEPS)


@pytest.mark.parametrize(("replicas", "microbatches"), [(2, 2), (4, 1)])
def test_replicas_and_microbatches_change_nothing(replicas, microbatches):
    assert STEPS * ROWS > 2 * POOL  # so that images leave the pool again
    found = train(TINY, DATA, replicas, microbatches, steps=STEPS)
    assert_same(found, reference())
    assert found[0]["pool_a/count"] == POOL
    assert np.unique(found[0]["pool_a/images"], axis=0).shape[0] == POOL
