"""Workers' TensorFlow servers connect, and wait for nobody without end.

The constructor of TensorFlow's strategy holds Python's lock until all workers have connected: no other thread runs that
could see that one of them has gone, and no handler of a signal.
"""

import signal
from collections.abc import Callable
from typing import TypeVar

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

from core.cluster.membership import join
from core.cluster.topology import Cluster
from core.signals import held_back

T = TypeVar("T")

CONNECTING_SECONDS = 30.0  # for what takes less than one where all workers live: they have just met


def bound_connecting(workers: int, *, seconds: float) -> None:
    """Lets the strategy that is made next give up, by an error, on workers that don't connect within `seconds`."""
    config = config_pb2.ConfigProto().experimental.coordination_config
    config.coordinated_job_list.add(name="worker", num_tasks=workers)
    # Left to itself the strategy configures the same, without a limit.
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        coordinated_jobs=list(config.coordinated_job_list),
        cluster_register_timeout_in_ms=int(1000 * seconds),
    )
    # Without it the first worker connects to itself, and waits for the others where nothing is limited.
    context.context().coordination_service.cluster_register_with_barrier = True


def connected(make: Callable[[Cluster], T], *, meeting: float, peer: float) -> T:
    """Returns what `make` makes of the cluster, once all workers have met, within `meeting` seconds.

    One that is silent for `peer` seconds from then on is lost, and the run ends.
    """
    membership = join(deadline=meeting)
    # No `timeout_seconds` for collectives: TensorFlow starts a thread for each, that sleeps so long. Those who watch
    # find a lost peer sooner, and one that lives and yet doesn't come is what `Trainer.section_deadline` is for.
    bound_connecting(membership.cluster.size, seconds=max(peer, CONNECTING_SECONDS))
    with held_back(signal.SIGTERM):  # TensorFlow takes it for workers, and then does nothing with it
        membership.watch(timeout=peer)
        return make(membership.cluster)
