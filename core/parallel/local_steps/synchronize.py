"""The end of a round of local steps: averages the replicas and applies the outer optimizer."""

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from core.choice import one_of
from core.distribution.ledger import VARIABLES
from core.distribution.shapes_only import made
from core.engine.assembly import Assembly
from core.module import named_variables
from core.optimizers import Optimizer, Transform
from core.parallel.local_steps.exchange import LocalExchange
from core.task import Update

Tensors = Mapping[str, tf.Tensor]


class Meeting:
    """The synchronization at a round's end, in replica context: averages weights and optimizer slots over replicas.

    An `outer` optimizer updates the weights of the round's start (DiLoCo: Douillard et al., 2023). Its gradient is
    these weights minus the mean weights at the round's end. A checkpoint needs no copy of the start's weights: it is
    saved between rounds, when they are the current weights.
    """

    def __init__(self, assembly: Assembly, exchange: LocalExchange, outer: Transform | None):
        self.exchange = exchange
        updates = [phase for phase in assembly.phases if isinstance(phase, Update)]
        trained = {id(variable) for phase in updates for variable in phase.variables().values()}
        modules = [m for p in updates for m in ([p.trains] if isinstance(p.trains, tf.Module) else p.trains)]
        moved = {id(variable) for module in modules for variable in named_variables(module).values()}
        inner = {path: v for path, v in assembly.variables.items() if path.startswith("optimizer/")}
        task = assembly.task_variables
        self.weights = {path: v for path, v in task.items() if id(v) in trained}
        self.slots = {path: v for path, v in inner.items() if v.dtype.is_floating}
        # Averages of layers and counts of updates; and variables that never change, which keep their bits.
        self.others = {path: v for path, v in inner.items() if v.dtype.is_integer}
        numbers = {path: v for path, v in task.items() if v.dtype.is_floating or v.dtype.is_integer}
        self.others |= {path: v for path, v in numbers.items() if id(v) in moved - trained}
        make_outer = outer and functools.partial(Optimizer, outer, self.weights)
        self.outer = made(make_outer, assembly.strategy.scope) if make_outer else None

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """Returns the outer optimizer's variables, for a checkpoint."""
        return {f"outer/{path}": v for path, v in self.outer.variables.items()} if self.outer else {}

    def begin(self) -> tuple[Tensors, Tensors]:
        """Returns the state at a round's start: the weights, and the variables whose changes will be averaged."""
        return _read(self.weights), _read(self.others)

    def end(self, before: tuple[Tensors, Tensors], struck: tf.Tensor, sums: Any) -> tuple[tf.Tensor, Any]:
        """Averages the replicas' states in one collective. Returns the means of `struck` and `sums`.

        `struck` is nonzero if a replica's step wasn't finite. All replicas then restore the weights in `before`.
        """
        weights, others = before
        changes = {path: _wide(v.read_value() - others[path]) for path, v in self.others.items()}
        own = {path: _wide(x) for path, x in _read({**self.weights, **self.slots}).items()}
        found, changes, struck, sums = self.exchange.mean((own, changes, struck, sums), what=VARIABLES)
        well = tf.reduce_all(struck == 0.0)
        for path, variable in self.slots.items():
            variable.assign(tf.cast(found[path], variable.dtype))
        for path, variable in self.others.items():
            change = tf.floor(changes[path]) if variable.dtype.is_integer else changes[path]
            variable.assign(others[path] + tf.cast(change, variable.dtype))
        for path, variable in self.weights.items():
            new = weights[path] if self.outer else one_of(well, tf.cast(found[path], variable.dtype), weights[path])
            variable.assign(new)
        if self.outer:
            way_back = {path: _wide(x) - found[path] for path, x in weights.items()}
            self.outer.apply(way_back, apply_if=well)
        return struck, sums


def _read(variables: Mapping[str, tf.Variable]) -> dict[str, tf.Tensor]:
    return {path: variable.read_value() for path, variable in variables.items()}


def _wide(x: tf.Tensor) -> tf.Tensor:
    """Returns `x` in the dtype for sending: float64 stays float64; all else, also integers, becomes float32."""
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
