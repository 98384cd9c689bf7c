"""Every rule of the table gives the same numbers eagerly, in a graph and compiled by XLA."""

import numpy as np
import pytest
import tensorflow as tf

from .optimizer_battery import Row, Run
from .optimizer_rows import OPTIMIZERS
from .transform_rows import TRANSFORMS

every_rule = pytest.mark.parametrize("row", [*OPTIMIZERS, *TRANSFORMS], ids=lambda row: row.id)


@every_rule
def test_eager_graph_and_xla_agree(row: Row) -> None:
    eager, graph, compiled = (Run(row.make(), fused=False) for _ in range(3))
    updates = [eager.update, graph.graph(), compiled.graph(compiled=True)]
    for i in range(3):
        for update in updates:
            update(tf.constant(i))
    size = np.abs(eager.numbers()).max()
    assert np.abs(graph.numbers() - eager.numbers()).max() <= 1e-6 * size
    assert np.abs(compiled.numbers() - eager.numbers()).max() <= row.xla_tolerance * size
