"""Every rule of the table when its updates are masked, its run continued, its chain grown, its dtypes others."""

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers import chain, clip_by_value, ema, sgd

from .optimizer_battery import Row, Run
from .optimizer_rows import OPTIMIZERS
from .transform_rows import TRANSFORMS

every_rule = pytest.mark.parametrize("row", [*OPTIMIZERS, *TRANSFORMS], ids=lambda row: row.id)


@every_rule
def test_masked_and_continued_updates_are_the_plain_ones_bit_for_bit(row: Row) -> None:
    masked, plain = Run(row.make()), Run(row.make())
    masked.params["net/0/b"].assign([-0.0, 1e-40, 1.0, -1.0])  # a minus zero and a denormal, to begin with
    update, plainly = masked.graph(), plain.graph()

    def skip(i: int) -> None:
        before = masked.bits()
        update(tf.constant(i), tf.constant(False), tf.constant(float("nan")))
        assert masked.bits() == before

    def apply(i: int) -> None:
        update(tf.constant(i), tf.constant(True), tf.constant(0.0))

    skip(0)
    apply(0)
    skip(0)
    for path, variable in plain.variables.items():  # whose first update is then the second of the run
        variable.assign(masked.variables[path])
    for i in range(1, 4):
        plainly(tf.constant(i))
        apply(i)
        skip(i)
        assert masked.bits() == plain.bits()
    assert update.experimental_get_tracing_count() == 1, "a change of the step, the gradients or the flag retraced it"


@pytest.mark.parametrize("row", [row for row in OPTIMIZERS if row.make().fused], ids=lambda row: row.id)
def test_the_pure_rule_behind_a_kernel_is_masked_too(row: Row) -> None:
    run = Run(row.make(), fused=False)
    run.params["net/0/b"].assign([-0.0, 1e-40, 1.0, -1.0])
    before = run.bits()
    run.update(tf.constant(0), tf.constant(False), float("nan"))
    assert run.bits() == before


@every_rule
def test_slots_keep_their_names_when_the_chain_grows(row: Row) -> None:
    alone, grown = Run(row.make()), Run(chain(clip_by_value(1e9), row.make(), ema(0.5), sgd(0.0)))
    mine = {path: v.shape for path, v in alone.optimizer.variables.items()}
    theirs = {path: v.shape for path, v in grown.optimizer.variables.items()}
    assert mine.items() <= theirs.items()


@every_rule
def test_half_precision_parameters_have_wide_slots_and_double_ones_stay_double(row: Row) -> None:
    half, single, double = (Run(row.make(), dtype=dtype) for dtype in (tf.bfloat16, tf.float32, tf.float64))
    # Unlike eager calls, graphs take no Python number for another dtype.
    for update in (half.graph(), single.update, double.graph()):
        update(tf.constant(0))
        update(tf.constant(1))
    assert {v.dtype for v in half.params.values()} == {tf.bfloat16}
    assert tf.bfloat16 not in {v.dtype for v in half.optimizer.variables.values()}
    assert {v.dtype for v in double.params.values()} == {tf.float64}
    size = np.abs(double.numbers()).max()
    assert np.abs(half.numbers() - double.numbers()).max() < 0.05 * size
    assert np.abs(single.numbers() - double.numbers()).max() < 1e-4 * size
