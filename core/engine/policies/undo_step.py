"""Undoes a step in which a later phase is bad, by restoring the variables that earlier phases wrote."""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from core.distribution.exchange import Exchange
from core.engine.assembly import Assembly
from core.module import named_variables
from core.optimizers import Optimizer
from core.task import Phase, Update


class Undo:
    """Copies variables before a step, to restore them. The last phase can skip its own write, so it needs no copy."""

    def __init__(self, assembly: Assembly, exchange: Exchange):
        self.exchange = exchange
        written = [list(_written_by(phase, assembly.optimizers)) for phase in assembly.phases]
        early = [variables for variables in written if variables][:-1]
        unique = {id(variable): variable for variables in early for variable in variables}
        self.alone = [v for key, v in unique.items() if key in assembly.one_device_ids]
        self.replicated = [v for key, v in unique.items() if key not in assembly.one_device_ids]

    def read(self) -> Any:
        """Returns copies of the variables before the step, for `put_back`."""
        replicated = self.exchange.run(lambda: _read(self.replicated)) if self.replicated else []
        with tf.device(self.exchange.device):
            return replicated, _read(self.alone)

    def put_back(self, kept: Any, *, unless: tf.Tensor) -> None:
        """Restores the copies `kept` (from `read`), unless the boolean `unless` is true."""
        replicated, alone = kept

        def write() -> None:
            if self.replicated:
                self.exchange.run(lambda values: _assign(self.replicated, values), replicated)
            with tf.device(self.exchange.device):
                _assign(self.alone, alone)

        if self.replicated or self.alone:
            tf.cond(unless, lambda: None, write)


def _written_by(phase: Phase, optimizers: Mapping[str, Optimizer]) -> Iterator[tf.Variable]:
    """Yields all variables that a phase may write."""
    if not isinstance(phase, Update):
        yield from named_variables(phase.state).values() if phase.state else ()
        return
    for module in [phase.trains] if isinstance(phase.trains, tf.Module) else phase.trains:
        yield from named_variables(module).values()
    yield from optimizers[phase.name].variables.values()


def _read(variables: list[tf.Variable]) -> list[tf.Tensor]:
    return [variable.read_value() for variable in variables]


def _assign(variables: list[tf.Variable], values: list[tf.Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
