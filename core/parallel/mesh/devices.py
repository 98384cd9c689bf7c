"""The devices of a mesh: all in this process, or the same number in each of several workers."""

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf
from absl import logging
from tensorflow.experimental import dtensor

from core.cluster.topology import Cluster, cluster_from_environment
from core.distribution.connect_workers import connected
from core.distribution.virtual_devices import make_virtual_cpus
from core.errors import ConfigurationError
from core.parallel.mesh.plan import BATCH, MODEL, MeshPlan

MEETING_SECONDS, PEER_SECONDS = 300.0, 30.0  # the defaults of `multi_worker`


def make_mesh(plan: MeshPlan, *, virtual: bool = False) -> dtensor.Mesh:
    """Makes the mesh, after a rendezvous of all workers. With `virtual`, uses virtual CPUs even if there are GPUs."""
    # With its all-to-all, a slice that drops a sharded axis' neighbour silently gives wrong values.
    os.environ["DTENSOR_USE_ALL_TO_ALL_RELAYOUT"] = "0"
    cluster = cluster_from_environment()
    workers = 1 if cluster is None else cluster.size
    devices = _devices(plan, workers, virtual=virtual)
    axes = [(axis, plan.sizes[axis]) for axis in (BATCH, MODEL)]
    with _unannounced():
        if workers == 1:
            return dtensor.create_mesh(axes, devices=devices)
        kind = devices[0].split(":")[0]
        connected(lambda cluster: _initialize(cluster, kind), meeting=MEETING_SECONDS, peer=PEER_SECONDS)
        return dtensor.create_distributed_mesh(axes, local_devices=devices)


def _initialize(cluster: Cluster, kind: str) -> None:
    """Starts this worker's TensorFlow server. DTensor reads the workers' addresses from `DTENSOR_JOBS`."""
    os.environ["DTENSOR_JOBS"] = ",".join(cluster.workers)
    os.environ["DTENSOR_CLIENT_ID"] = str(cluster.index)
    dtensor.initialize_accelerator_system(kind, enable_coordination_service=False)  # it already runs, with its limits


def _devices(plan: MeshPlan, workers: int, *, virtual: bool) -> list[str]:
    """Returns the devices of this process, such as `["GPU:0", "GPU:1"]`. Each worker has the same number."""
    count, rest = divmod(plan.devices, workers)
    if rest:
        raise ConfigurationError(
            f"`mesh.batch` x `mesh.model` is {plan}, {plan.devices} devices, which {workers} workers can't share "
            "evenly: give sizes whose product is a multiple of the number of workers, or start fewer workers."
        )
    gpus = 0 if virtual else len(tf.config.get_visible_devices("GPU"))
    if not gpus:
        make_virtual_cpus(count)
        return [f"CPU:{i}" for i in range(count)]
    if count > gpus:
        raise ConfigurationError(
            f"`mesh.batch` x `mesh.model` is {plan}, {count} devices{' a worker' if workers > 1 else ''}, but this "
            f"machine has {gpus} GPU{'s' if gpus > 1 else ''}: make one of them smaller."
        )
    return [f"GPU:{i}" for i in range(count)]


@contextlib.contextmanager
def _unannounced() -> Iterator[None]:
    """Keeps TensorFlow from listing a mesh's devices on stderr in its `with` block."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)
