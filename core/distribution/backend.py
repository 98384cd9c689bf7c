"""`Backend`: the operations of a run that depend on the kind of strategy: variables, checks, exchange and programs.

The base class serves strategies whose replicas each hold a whole copy: one device, mirrored, multi-worker and TPU. For
other kinds, a subclass overrides the methods that differ, and registers its strategy:

    @register(MyStrategy)
    class MyBackend(Backend):
        how = "with my strategy"
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import tensorflow as tf

from core.distribution.drift import replica_drift_check
from core.distribution.exchange import Exchange
from core.distribution.ledger import Ledger
from core.distribution.shapes_only import made
from core.optimizers import Optimizer
from core.task import Phase, Placement, Task

T = TypeVar("T")


class Backend:
    """The interface through which engine and trainer use a `strategy`."""

    how = "on replicas"  # names the kind in errors

    # Capabilities.
    not_compiled: str | None = None  # why XLA compiles nothing: completes "programs of XLA, which can't"
    round_steps = 1  # steps between two synchronizations; checkpoints are taken at the end of a round
    in_rounds = False  # within a round, a replica takes steps on its own rows alone
    steps_together = True  # all devices take each step together, so that it can be repeated
    steps_here = True  # this process takes steps itself
    separable = True  # a step's computation and its exchange can be timed separately
    repeatable = True  # two runs of one configuration give the same bits
    handed_over_by_any_thread = True  # batches reach the devices from whichever thread makes them
    row_counts_apart = False  # a program has one number of rows, so that a smaller last batch needs another
    saves_in_parts = False  # each process writes its part of a checkpoint
    one_device_reads = True  # one device can read each variable; otherwise hooks read a copy on the host
    reads_are_local = True  # a read sends nothing to other devices
    evaluates_copy = False  # evaluation reads a copy on the host

    def __init__(self, strategy: Any):
        self.strategy = strategy

    def __str__(self) -> str:
        """Returns the number of replicas as text, such as "2 replicas"."""
        replicas = self.strategy.num_replicas_in_sync
        return f"{replicas} replica{'s' if replicas > 1 else ''}"

    # Variables.

    def make_task(
        self, make: Callable[[], T], *, placements: Mapping[str, Placement] = {}, one_device: Sequence[str] = ()
    ) -> T:
        """Calls `make()` in the strategy's scope, and returns the task that it makes."""
        return self.make_whole(make)

    def make_optimizer(self, make: Callable[[], Optimizer], task: Task) -> Optimizer:
        """Calls `make()` in the strategy's scope, and returns the optimizer that it makes for variables of `task`."""
        return self.make_whole(make)

    def make_whole(self, make: Callable[[], T]) -> T:
        """Returns the result of `make()`, called in the strategy's scope with variables stored whole on each device."""
        return made(make, self.strategy.scope)

    def kept_once(self) -> AbstractContextManager[Any]:
        """Returns a scope for variables that one device stores and all replicas share."""
        return tf.device(self.strategy.extended.worker_devices[0])

    def bytes_per_device(self, variable: tf.Variable) -> int:
        """Returns the number of bytes of `variable` that each device stores."""
        return int(variable.dtype.size * variable.shape.num_elements())

    @property
    def local_devices(self) -> Sequence[str]:
        """Lists the devices of this process."""
        return list(self.strategy.extended.worker_devices)

    def place_of(self, variable: tf.Variable) -> str:
        """Returns a text that names the devices on which a variable is stored."""
        return "every replica"

    def memory_remark(self, variables: Mapping[str, tf.Variable]) -> str | None:
        """Returns a text with the share of `variables` that each device holds, or None if each holds all."""
        return None

    # Checks.

    def check_task(
        self, task: Task, phases: Sequence[Phase], *, placements: Mapping[str, Placement], one_device: Sequence[str]
    ) -> None:
        """Raises a `ConfigurationError` if the strategy can't train this task."""

    def check_optimizers(self, task: Task, optimizers: Sequence[Optimizer]) -> None:
        """Raises a `ConfigurationError` if the `optimizers` of `task` don't fit the settings of the strategy."""

    def check_rows(self, rows: int, microbatches: int = 1, *, what: str) -> None:
        """Raises an error if devices can't share `rows` evenly. `what` names the number of rows in the message."""

    def check_local_steps(self) -> None:
        """Raises a `ConfigurationError` if the strategy can't be used with `Trainer.local_steps`."""

    def check_policies(self, skipping: Sequence[str], rolling_back: Sequence[str]) -> None:
        """Raises an error if bindings ask to skip bad steps or to roll back, and the strategy can't."""

    # Steps.

    def exchange(self, *, reduce_in: tf.DType | None = None) -> Exchange:
        """Makes the exchange between devices. It sends float32 gradients in the dtype `reduce_in`."""
        return Exchange(self.strategy, reduce_in=reduce_in)

    def chunk(self, train_step: Any, stacked_spec: Mapping[str, tf.TensorSpec], progress: Any) -> Any:
        """Makes the program that runs a chunk of steps. None means that the engine's own loop runs it."""
        return None

    def rounds(self, train_step: Any, assembly: Any) -> Any:
        """Makes the object that runs a chunk in rounds of local steps. None means that there are no rounds."""
        return None

    def settle(self, program: Any) -> None:
        """Waits until all steps that `program` (a traced chunk) has scheduled are done. Replicas needn't wait."""

    def figures(self, program: Any) -> dict[str, float]:
        """Returns metrics `{name: number}` of the steps that `program` has scheduled since the last call."""
        return {}

    # Programs.

    def handed(self, value: tf.Tensor) -> tf.Tensor:
        """Converts a value of the host to an argument of a traced function. The function undoes this with `taken`."""
        return value

    def taken(self, value: Any, dtype: tf.DType) -> Any:
        """In a traced function, converts an argument made by `handed` back to a value of `dtype`."""
        return value

    def by_rows(self, value: Any, axis: int) -> Any:
        """Shards a value over the devices along its rows axis, `axis`. Replicas have only their own rows already."""
        return value

    def around_loop(self) -> AbstractContextManager[Any]:
        """Returns the scope for tracing a loop that calls `Exchange.run`."""
        return contextlib.nullcontext()

    def program(self, function: Any, ledger: Ledger) -> Any:
        """Returns a callable for the concrete `function`. Its first call completes the `ledger`."""
        return function

    # Processes.

    def drift_check(self, variables: Mapping[str, tf.Variable]) -> Callable[[], None]:
        """Returns a function that raises a `DriftError` if copies of `variables` differ between devices."""
        return replica_drift_check(self.strategy, variables)

    def make_process_sum(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns a function that sums one value per replica. Each replica contributes the value of its process."""
        exchange = Exchange(self.strategy)
        return tf.function(
            lambda x: exchange.reduce(exchange.run(tf.identity, x), phase="agreement", what="what workers know"),
            autograph=False,
        )
