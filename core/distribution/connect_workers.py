"""Connects the workers' TensorFlow servers within a time limit.

The constructor of TensorFlow's strategy holds Python's global lock until all workers have connected. Until then, no
other thread can detect a lost worker, and no signal handler runs.
"""

import signal
from collections.abc import Callable
from typing import TypeVar

from tensorflow.core.protobuf import config_pb2

from core.cluster.membership import join
from core.cluster.topology import Cluster
from core.signals import held_back
from core.tensorflow_private import context

T = TypeVar("T")

CONNECTING_SECONDS = 30.0  # takes less than one second if all workers are alive, since they have just met


def bound_connecting(workers: int, *, seconds: float) -> None:
    """Limits the next constructor of a strategy: it raises an error unless all `workers` connect within `seconds`."""
    config = config_pb2.ConfigProto().experimental.coordination_config
    config.coordinated_job_list.add(name="worker", num_tasks=workers)
    # By default the strategy configures the same, without a limit.
    context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        coordinated_jobs=list(config.coordinated_job_list),
        cluster_register_timeout_in_ms=int(1000 * seconds),
    )
    # Otherwise the first worker connects to itself, and waits without a limit for the others.
    context().coordination_service.cluster_register_with_barrier = True


def connected(make: Callable[[Cluster], T], *, meeting: float, peer: float) -> T:
    """Waits at most `meeting` seconds for all workers, then returns `make(cluster)`.

    Afterwards, a worker that is silent for `peer` seconds counts as lost, and the run ends.
    """
    membership = join(deadline=meeting)
    # No `timeout_seconds` for collectives: TensorFlow starts a thread per collective that sleeps so long. The
    # heartbeats find a lost peer sooner, and `Trainer.section_deadline` handles one that is alive but doesn't come.
    bound_connecting(membership.cluster.size, seconds=max(peer, CONNECTING_SECONDS))
    with held_back(signal.SIGTERM):  # TensorFlow would take it over for workers, and then ignore it
        membership.watch(timeout=peer)
        return make(membership.cluster)
