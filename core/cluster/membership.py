"""This process's membership in a cluster. A process joins at most one cluster."""

import contextlib
import faulthandler
import hashlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from core.cluster.addresses import is_on_loopback
from core.cluster.handshake import TOKEN, token_from_environment
from core.cluster.heartbeat import Heartbeat
from core.cluster.other_users import check_consent
from core.cluster.port_guard import fence
from core.cluster.topology import Cluster, ServedCluster, cluster_from_environment
from core.errors import ConfigurationError, PeerLostError

REPORT_SECONDS = 15.0  # that TensorFlow has to report a lost peer by itself


class Watch(Protocol):
    """The interface of `Heartbeat` and `Crew`, which detect lost peers."""

    def watch(self, *, timeout: float, on_lost: Callable[[str], None]) -> None: ...
    def wait_for_word(self, seconds: float) -> str | None: ...
    def leave(self, reason: str | None = None) -> None: ...


class Membership:
    """This process's place in its cluster. If a peer is lost, it ends the process."""

    def __init__(self, cluster: Cluster, heartbeat: Watch):
        self.cluster, self.heartbeat = cluster, heartbeat
        self.last_words: Callable[[str], None] = lambda reason: None  # called before the watch ends the process
        self.guards: Sequence[socket.socket] = ()  # closed with the process
        self._ended = threading.Event()

    def watch(self, *, timeout: float) -> None:
        """Ends this process if a peer is silent for `timeout` seconds from now on. Also guards this process's port."""
        self.timeout = timeout
        self.heartbeat.watch(timeout=timeout, on_lost=self._on_lost)
        self.guards = fence(self.cluster)

    def show(self, doing: Callable[[], str]) -> None:
        """Sets a function that returns this process's current activity, for heartbeats to report."""
        if isinstance(self.heartbeat, Heartbeat):  # with parameter servers, no worker waits for another's step
            self.heartbeat.show(doing)

    def elsewhere(self, doing: str) -> dict[str, str]:
        """Returns `{worker's name: activity}` for workers that last reported another activity than `doing`."""
        return self.heartbeat.elsewhere(doing) if isinstance(self.heartbeat, Heartbeat) else {}

    def leave(self, reason: str | None = None) -> None:
        """Tells the peers that this process leaves: its work is done, or it failed for `reason`."""
        self._ended.set()
        self.heartbeat.leave(reason)

    def _on_lost(self, sentence: str) -> None:
        """Ends the process from the watching thread, because a collective with a lost peer may ignore signals."""
        if self._ended.wait(REPORT_SECONDS):
            return
        error = PeerLostError(f"{sentence}. {RESTART}")
        faulthandler.dump_traceback(all_threads=True)
        print(f"error: {error}", file=sys.stderr, flush=True)
        self.last_words(str(error))
        os._exit(error.exit_code)


RESTART = (
    "Start all workers again; they resume from the last checkpoint (`python -m trainers.launch --max_restarts=N` does "
    "that)."
)
_joined: Membership | None = None
_facts: dict[str, str] = {}


def joined() -> Membership | None:
    """Returns this process's `Membership`, or None if it has joined no cluster."""
    return _joined


def is_chief() -> bool:
    """Says whether this process is the one that writes checkpoints, metrics and results."""
    return _joined is None or _joined.cluster.is_chief


def must_agree(**facts: str) -> None:
    """Adds facts for the workers to compare at the rendezvous, in addition to configuration and packages."""
    _facts.update(facts)


def join(*, deadline: float) -> Membership:
    """Waits up to `deadline` seconds for the other workers. All must have the same configuration and packages."""
    import gin  # here, because a launcher needs neither gin nor TensorFlow, which gin imports

    from core.checkpoint.versions import versions

    cluster = cluster_from_environment()
    if cluster is None:
        raise ConfigurationError(
            "`multi_worker` finds no cluster: `TF_CONFIG` isn't set, and this isn't a Slurm step of several tasks. "
            "Start a cluster with `python -m trainers.launch --workers=2 -- ...`, or use `mirrored` in one process."
        )
    if isinstance(cluster, ServedCluster):
        raise ConfigurationError(
            "`multi_worker` has no parameter servers: leave `ps` out of `TF_CONFIG.cluster`, or train with them: "
            "`--gin_file=configs/runtime/parameter_server.gin`."
        )
    about = {"configuration": hashlib.sha256(gin.config_str().encode()).hexdigest()[:16], **versions(), **_facts}
    return become(cluster, lambda token: Heartbeat.meet(cluster, about=about, deadline=deadline, token=token))


def become(cluster: Cluster, meet: Callable[[str], Watch]) -> Membership:
    """Makes this process a member of `cluster`. `meet(token)` runs the rendezvous."""
    global _joined
    if _joined is not None:
        raise ConfigurationError("this process belongs to a cluster already: make one strategy only.")
    check_consent()
    token = token_from_environment()
    if not token and len(cluster.workers) > 1 and cluster.is_chief and not is_on_loopback(cluster.workers):
        print(
            f"Warning: `{TOKEN}` isn't set: anyone who reaches {cluster.address} can join the workers' rendezvous, and "
            "end it. Give all workers the same secret in it.",
            flush=True,
        )
    _joined = Membership(cluster, meet(token))
    return _joined


@contextlib.contextmanager
def naming_lost_peers() -> Iterator[None]:
    """In its `with` block, TensorFlow's error for a lost peer becomes a `PeerLostError` that names the peer."""
    import tensorflow as tf

    try:
        yield
    except (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.DeadlineExceededError,
        tf.errors.CancelledError,
        tf.errors.InternalError,
        tf.errors.FailedPreconditionError,
    ) as error:
        if _joined is None or len(_joined.cluster.workers) == 1:
            raise
        found = _joined.heartbeat.wait_for_word(_joined.timeout + REPORT_SECONDS / 3)
        if found is None and isinstance(error, tf.errors.InternalError | tf.errors.FailedPreconditionError):
            raise  # all are alive, so the error is this worker's own
        said = found or f"the workers lost each other ({str(error).splitlines()[0]})"
        raise PeerLostError(f"{said}. {RESTART}") from error
