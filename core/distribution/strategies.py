"""The strategies that gin files can name."""

import re
from collections.abc import Sequence

import gin
import tensorflow as tf

from core.cluster.topology import Cluster
from core.distribution.connect_workers import connected
from core.distribution.early_variables import made_too_early
from core.distribution.probe import check_exchange
from core.distribution.virtual_devices import made_virtual_cpus, make_virtual_cpus
from core.errors import ConfigurationError, PeerLostError


@gin.configurable
def one_device(device: str | None = None) -> tf.distribute.Strategy:
    """Trains on one `device`, such as `"CPU:0"` or `"GPU:1"`. The default is the first GPU, or the CPU."""
    available = _devices()
    if device is None:
        device = next((name for name in available if name.startswith("GPU")), "CPU:0")
    elif device not in available:
        raise ConfigurationError(
            f"`one_device.device` is {device!r}, but this machine has {', '.join(available)}: name one of them, or "
            "leave it out to take the first GPU where there is one."
        )
    return tf.distribute.OneDeviceStrategy(device)


@gin.configurable
def mirrored(replicas: int | None = None, devices: Sequence[str] | None = None) -> tf.distribute.Strategy:
    """Trains with data parallelism on replicas of this machine (MirroredStrategy).

    The replicas run on `devices`, or on the first `replicas` GPUs (by default all). A machine without GPUs uses virtual
    CPU devices (by default two) for rehearsal. They share the cores.
    """
    chosen = _chosen(replicas, devices)
    if not chosen[0].startswith("GPU"):
        # In one process and one memory, adding up on one device is faster than TensorFlow's collectives.
        return _checked(chosen, tf.distribute.ReductionToOneDevice())
    try:
        return _checked(chosen, tf.distribute.NcclAllReduce(num_packs=0))
    except (tf.errors.OpError, PeerLostError) as error:
        reason = why_not(str(error))
        print(f"Warning: NCCL doesn't work on {', '.join(chosen)} ({reason}); copying between them instead", flush=True)
        return _checked(chosen, copying_between(len(chosen)))


def why_not(said: str) -> str:
    """Returns NCCL's reason from the text of TensorFlow's error, or else the text's first line.

    >>> why_not("Graph execution error:\\n\\n2 root error(s) found.\\n  (0) INTERNAL:  NCCL: invalid usage")
    'NCCL: invalid usage'
    """
    found = re.search(r"NCCL: .*", said)
    return found[0].strip() if found else said.splitlines()[0]


def copying_between(gpus: int) -> tf.distribute.CrossDeviceOps:
    """Returns TensorFlow's operations for sums between GPUs. They copy values, without NCCL."""
    if gpus % 2 == 0:
        # No packs: TensorFlow would put all types into one. `Exchange` has already packed small values.
        return tf.distribute.HierarchicalCopyAllReduce(num_packs=0)
    return tf.distribute.ReductionToOneDevice()  # the hierarchy has two equal groups, and would omit one GPU


@gin.configurable
def multi_worker(*, meeting_deadline: float = 300.0, peer_timeout: float = 30.0) -> tf.distribute.Strategy:
    """Trains together with other processes, on this or other machines, as `TF_CONFIG` or Slurm configures them.

    All processes must connect within `meeting_deadline` seconds. If a worker is silent for `peer_timeout` seconds, it
    counts as lost, and the run ends.
    """
    strategy = connected(_multi_worker, meeting=meeting_deadline, peer=peer_timeout)
    check_exchange(strategy, deadline=meeting_deadline)
    return strategy


def _multi_worker(cluster: Cluster) -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.spec), task_type="worker", task_id=cluster.index, rpc_layer="grpc"
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise ConfigurationError(
            f"`multi_worker` has to be there before TensorFlow starts, which it has: {made_too_early()}"
        ) from None


@gin.configurable
def tpu(address: str = "") -> tf.distribute.Strategy:
    """Trains on the TPU at `address`: a name, `grpc://...`, or empty for this machine's own. Unverified."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError) as error:
        raise ConfigurationError(
            f"`tpu.address` is {address!r}, where no TPU answers ({str(error).splitlines()[0]}): name one that is up."
        ) from error
    strategy = tf.distribute.TPUStrategy(resolver)
    check_exchange(strategy)
    return strategy


STRATEGIES = (
    "one_device",
    "mirrored",
    "multi_worker",
    "tpu",
    "mesh",
    "parameter_server",
)  # what a gin file may bind to `Experiment.strategy`


def _devices() -> list[str]:
    kinds = [device.device_type for device in tf.config.get_visible_devices()]  # renumbered, as in TensorFlow
    names = [f"{kind}:{kinds[:i].count(kind)}" for i, kind in enumerate(kinds)]
    return names + [f"CPU:{i}" for i in range(1, made_virtual_cpus())]


def _chosen(replicas: int | None, devices: Sequence[str] | None) -> list[str]:
    available = _devices()
    gpus = [name for name in available if name.startswith("GPU")]
    if replicas is not None and replicas < 1:
        raise ConfigurationError(f"`mirrored.replicas` is {replicas}; it counts devices: give 1 or more.")
    if devices is not None:
        names = list(devices)
        if not names or len(set(names)) < len(names) or (replicas is not None and replicas != len(names)):
            raise ConfigurationError(
                f"`mirrored.devices` is {names} (and `mirrored.replicas` {replicas}); name each device once, and leave "
                "`replicas` out."
            )
        virtual = [name for name in names if name.startswith("CPU:") and name[4:].isdigit()]
        if len(virtual) == len(names):
            make_virtual_cpus(1 + max(int(name[4:]) for name in virtual))
        elif unknown := [name for name in names if name not in gpus]:
            raise ConfigurationError(
                f"`mirrored.devices` names {', '.join(unknown)}; the GPUs of this machine are "
                f"{', '.join(gpus) or 'none'}. Name those, or virtual CPUs alone (`['CPU:0', 'CPU:1']`)."
            )
        return names
    if gpus:
        if replicas is not None and replicas > len(gpus):
            raise ConfigurationError(
                f"`mirrored.replicas` is {replicas}, but the GPUs of this machine are {', '.join(gpus)}: request "
                "fewer, use more workers (`multi_worker`), or rehearse on virtual CPUs "
                "(`mirrored.devices = ['CPU:0', 'CPU:1']`)."
            )
        return gpus[:replicas]
    make_virtual_cpus(replicas or 2)
    return [f"CPU:{i}" for i in range(replicas or 2)]


def _checked(devices: list[str], cross_device_ops: tf.distribute.CrossDeviceOps) -> tf.distribute.Strategy:
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops)
    check_exchange(strategy)
    return strategy
