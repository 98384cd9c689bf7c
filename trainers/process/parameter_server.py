"""Runs a TensorFlow server for a chief: the command in a worker or `ps` process.

A worker computes, a `ps` holds variables. Only the chief reads the configuration and reports errors in it. Each process
writes its C++ log to the workdir, if this folder exists on its machine.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from core.cluster.handshake import token_from_environment
from core.cluster.other_users import check_consent
from core.cluster.port_guard import fence
from core.cluster.server_process import Duty
from core.cluster.topology import ServedCluster, cluster_from_environment
from core.errors import ConfigurationError, PreemptedError
from core.signals import held_back
from trainers.errors.exit_report import report
from trainers.process.bootstrap import check_own_packages, import_packages
from trainers.process.signals import STOPPING, Preemption
from trainers.process.standard_streams import move_native_stderr, native_stderr_in

if TYPE_CHECKING:
    import tensorflow as tf

MEETING_SECONDS = 300.0  # limit for the chief to connect, equal to its default limit for others


def served_place() -> ServedCluster | None:
    """Returns this process's place in a cluster with parameter servers; None for the chief, or with no such cluster."""
    cluster = cluster_from_environment()
    return cluster if isinstance(cluster, ServedCluster) and not cluster.is_chief else None


def serve(cluster: ServedCluster, workdir: Path) -> NoReturn:
    """Serves the chief of this cluster until the chief ends, then ends the process."""
    try:
        with native_stderr_in(None, ends_process=True):
            code = _serve(cluster, workdir)
    except BaseException as error:
        code = report(error, verbose=False)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # TensorFlow servers can't be stopped otherwise


def _serve(cluster: ServedCluster, workdir: Path) -> int:
    for number in STOPPING:
        signal.signal(number, lambda *_: os._exit(PreemptedError.exit_code))  # serves no chief yet: nothing is lost
    check_own_packages()
    check_consent()
    import_packages("tensorflow")
    from core.checkpoint.versions import versions

    duty = Duty.awaited(cluster, about=versions(), deadline=MEETING_SECONDS, token=token_from_environment())
    move_native_stderr(workdir)  # the chief has made it by now
    with held_back(signal.SIGTERM):  # TensorFlow overrides its handler without effect
        _held = fence(cluster), _started(cluster)  # open while referenced
    preemption = Preemption()
    with preemption.granted():
        duty.begin()
        print(f"{cluster.name(cluster.index)} serves {cluster.name(0)}", flush=True)
        dismissed = duty.stay(told_to_stop=lambda: preemption.signal is not None)
    return 0 if dismissed else PreemptedError.exit_code


def _started(cluster: ServedCluster) -> "tf.distribute.Server":
    import tensorflow as tf

    try:
        spec = tf.train.ClusterSpec(cluster.spec)
        return tf.distribute.Server(spec, job_name=cluster.job, task_index=cluster.place, protocol="grpc")
    except tf.errors.OpError as error:
        raise ConfigurationError(
            f"{cluster.name(cluster.index)} can't serve ({str(error).splitlines()[0]}): give another port in "
            "`TF_CONFIG.cluster`."
        ) from error
