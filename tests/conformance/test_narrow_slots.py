"""Optimizers with narrow slots through the battery: peers, masks, resumed updates, XLA, names."""

import numpy as np
import pytest
import tensorflow as tf

from core import optimizers
from core.optimizers import chain, clip_by_value, ema, sgd

from .narrow_rows import NARROW
from .optimizer_battery import Row, Run, largest_difference, trajectory

every_row = pytest.mark.parametrize("row", NARROW, ids=lambda row: row.id)


def test_every_optimizer_with_slots_of_other_dtypes_has_rows() -> None:
    having = {name for name in optimizers.__all__ if "slots" in getattr(optimizers, name).__annotations__}
    assert {row.id for row in NARROW} == {
        f"{n}: {d} slots" for n in having - {"Optimizer"} for d in ("bfloat16", "int8")
    }


@every_row
def test_rule_stays_near_the_float32_peer(row: Row) -> None:
    in_place, pure = Run(row.make()), Run(row.make(), fused=False, mode="eager")
    assert any(v.dtype in (tf.bfloat16, tf.int8) for v in in_place.optimizer.variables.values())
    for run in (in_place, pure):
        assert largest_difference(row, trajectory(run, row.steps)) <= row.tolerance


@every_row
def test_masked_and_resumed_updates_are_the_plain_ones_bit_for_bit(row: Row) -> None:
    masked, plain = Run(row.make()), Run(row.make())
    masked.update(0, apply_if=True)
    before = masked.bits()
    masked.update(1, apply_if=False, spoil=float("nan"))
    assert masked.bits() == before
    for path, variable in plain.variables.items():
        variable.assign(masked.variables[path])
    for i in range(1, 4):
        plain.update(i)
        masked.update(i, apply_if=True)
    assert masked.bits() == plain.bits()
    assert masked.call.experimental_get_tracing_count() == 1


@pytest.mark.long
@every_row
def test_eager_updates_agree_with_those_of_xla(row: Row) -> None:
    eager, compiled = (
        Run(row.make(), fused=False, mode=mode, paths=("net/0/w", "net/0/b", "scale")) for mode in ("eager", "xla")
    )
    for i in range(3):
        eager.update(i)
        compiled.update(i)
    assert np.abs(compiled.numbers() - eager.numbers()).max() <= row.xla_tolerance * np.abs(eager.numbers()).max()


@every_row
def test_slots_keep_their_names_when_the_chain_grows(row: Row) -> None:
    alone, grown = Run(row.make()), Run(chain(clip_by_value(1e9), row.make(), ema(0.5), sgd(0.0)))
    mine = {path: (v.shape, v.dtype) for path, v in alone.optimizer.variables.items()}
    theirs = {path: (v.shape, v.dtype) for path, v in grown.optimizer.variables.items()}
    assert mine.items() <= theirs.items()
    assert all(theirs[path][1] == tf.float32 for path in theirs if path.startswith("ema/"))
