"""The strategy of asynchronous training, in place of TensorFlow's.

It is one logical replica. Each variable is stored whole on one parameter server. The chief schedules steps. One worker
runs each step, on the whole global batch.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gin
import tensorflow as tf

from core.arguments import is_size
from core.cluster.server_pool import connect_servers
from core.errors import ConfigurationError, shown
from core.parallel.parameter_server.variable import ServedVariable, asked_server
from core.signals import held_back


class ServedStrategy:
    """The chief's connection to workers and servers."""

    num_replicas_in_sync = 1

    def __init__(
        self,
        cluster: tf.train.ClusterSpec,
        *,
        max_staleness: int | None = None,
        divide_by_staleness: bool = False,
        overdue: float = 10.0,
        meeting_deadline: float = 300.0,
    ):
        self.max_staleness, self.divide_by_staleness = max_staleness, divide_by_staleness
        self.overdue, self.meeting_deadline = overdue, meeting_deadline
        self.workers, servers = cluster.num_tasks("worker"), cluster.num_tasks("ps")
        self.servers = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(servers)]
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, task_type="chief", task_id=0, rpc_layer="grpc"
        )
        with held_back(signal.SIGTERM):  # TensorFlow's servers would take it over
            strategy = tf.distribute.ParameterServerStrategy(resolver)
            self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._bytes = dict.fromkeys(self.servers, 0)  # stored on each

    @property
    def extended(self) -> "ServedStrategy":
        """Returns `self`, which has the attributes of a TensorFlow strategy's `extended` too."""
        return self

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Returns the device of the first server, for values that are stored once."""
        return (self.servers[0],)

    def variable_created_in_scope(self, variable: tf.Variable) -> bool:
        """Says whether `variable` was made in this strategy's scope."""
        return isinstance(variable, ServedVariable) and variable.strategy is self

    @contextmanager
    def scope(self, server: str | None = None) -> Iterator[None]:
        """In its `with` block, variables are made on `server`. The default is the server with the fewest bytes."""

        def create(following: Any, **kwargs: Any) -> tf.Variable:
            value = kwargs["initial_value"]
            value = tf.convert_to_tensor(value() if callable(value) else value, kwargs.get("dtype"))
            place = server or asked_server() or min(self._bytes, key=self._bytes.__getitem__)
            self._bytes[place] += value.dtype.size * value.shape.num_elements()
            trainable = kwargs.get("trainable") is not False
            return ServedVariable(value, strategy=self, server=place, name=kwargs.get("name"), trainable=trainable)

        with tf.variable_creator_scope(create):
            yield

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = ()) -> Any:
        """Calls `fn` once, for the worker that runs the step."""
        return fn(*args)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Returns `(value,)`, the values of the one replica."""
        return (value,)

    def experimental_distribute_values_from_function(self, value_of: Callable[[Any], Any]) -> Any:
        """Calls `value_of` for the one replica, and returns its result."""
        return value_of(tf.distribute.get_replica_context())


@gin.configurable
def parameter_server(
    *,
    max_staleness: int | None = None,
    divide_by_staleness: bool = False,
    overdue: float = 10.0,
    meeting_deadline: float = 300.0,
) -> ServedStrategy:
    """Trains asynchronously with parameter servers (as ParameterServerStrategy does): workers take steps independently.

    A gradient's staleness is the number of updates since its weights were read. If it exceeds `max_staleness`, the
    gradient is rejected and its step repeated. `divide_by_staleness` divides the learning rate by the staleness. A step
    that takes more than `overdue` seconds is also given to another worker. All workers and servers must answer within
    `meeting_deadline` seconds.
    """
    if not (max_staleness is None or is_size(max_staleness) or (max_staleness == 0 and max_staleness is not False)):
        raise ConfigurationError(
            f"`parameter_server.max_staleness` is {shown(max_staleness)}; it counts updates: give a whole number from "
            "0, or None for no bound."
        )
    for name, seconds in (("overdue", overdue), ("meeting_deadline", meeting_deadline)):
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
            raise ConfigurationError(
                f"`parameter_server.{name}` is {shown(seconds)}; it is a time in seconds: give a number above 0."
            )
    return ServedStrategy(
        connect_servers(meeting_deadline),
        max_staleness=max_staleness,
        divide_by_staleness=divide_by_staleness,
        overdue=overdue,
        meeting_deadline=meeting_deadline,
    )
