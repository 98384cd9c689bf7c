"""Every rule of the table gives the same numbers eagerly, in a graph and compiled by XLA."""

import numpy as np
import pytest
import tensorflow as tf

from .optimizer_battery import Row, Run
from .optimizer_rows import OPTIMIZERS
from .transform_rows import TRANSFORMS

every_rule = pytest.mark.parametrize("row", [*OPTIMIZERS, *TRANSFORMS], ids=lambda row: row.id)


@every_rule
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)], ids=["graph", "xla"])
def test_eager_and_traced_agree(row: Row, compiled: bool) -> None:
    eager, traced = (Run(row.make(), fused=False) for _ in range(2))
    update = traced.graph(compiled=compiled)
    for i in range(3):
        eager.update(tf.constant(i))
        update(tf.constant(i))
    tolerance = row.xla_tolerance if compiled else 1e-6
    assert np.abs(traced.numbers() - eager.numbers()).max() <= tolerance * np.abs(eager.numbers()).max()
