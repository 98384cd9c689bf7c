"""CycleGAN in the engine: the same numbers on replicas, in microbatches and placements, with active pools.

test_pix2pix.py trains a discriminator on one device.
"""

import functools
from collections import Counter

import numpy as np
import pytest

from core.distribution.ledger import GRADIENTS
from core.optimizers import sgd
from core.task import ONE_DEVICE
from core.testing import assemble, on_virtual_cpus
from models import CycleGan
from tests.core.engine.engine_lab import assert_same, train

ROWS, SIZE, POOL, STEPS = 4, 16, 3, 2
# A gradient of convolutions adds up thousands of terms, in another order for each number of replicas and processor.
NORMS = 1e-5
RANDOM = np.random.RandomState(0)
DATA = {name: np.tanh(RANDOM.randn(ROWS, SIZE + 2, SIZE + 2, 3)).astype("float32") for name in ("a", "b")}

TINY = functools.partial(
    CycleGan,
    image_shape=[SIZE, SIZE, 3],
    width=2,
    blocks=1,
    discriminator_channels=[3],
    pool_size=POOL,
    crop_and_flip=True,
    # Steps much smaller than the weights: before a norm, small weights turn a large step into chaos.
    g_optimizer=sgd(1e-4),
    d_optimizer=sgd(1e-4),
)


GENERATORS_APART = {"placements": {"generators": ONE_DEVICE}, "one_device": ["g_ab", "g_ba"]}


@pytest.mark.long
def test_replicas_microbatches_and_generators_on_one_device_change_nothing():
    assert STEPS * ROWS > 2 * POOL  # so that images leave the pool again
    alone, (found, step) = train(TINY, DATA, 1, 1, steps=STEPS), train(TINY, DATA, 2, 1, steps=STEPS)
    assert_same((found, step), alone, norms=NORMS)
    assert step.remarks == []
    reductions = Counter(entry.phase for entry in found.collectives if entry.what == GRADIENTS)
    assert reductions == {"generators": 1, "d_a": 1, "d_b": 1}
    apart = train(TINY, DATA, 2, 2, steps=STEPS, **GENERATORS_APART)
    assert_same(apart, alone, norms=NORMS)
    variables = apart[0].variables
    assert variables["pool_a/count"] == POOL
    assert np.unique(variables["pool_a/images"], axis=0).shape[0] == POOL


def test_generators_on_one_device_are_on_no_other():
    assembly = assemble(TINY, on_virtual_cpus(2), **GENERATORS_APART)
    for path, variable in assembly.variables.items():
        apart = path.startswith(("task/g_", "task/pool_", "optimizer/generators/"))
        assert len(assembly.strategy.experimental_local_results(variable)) == (1 if apart else 2), path
