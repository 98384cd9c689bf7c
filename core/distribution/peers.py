"""The workers of one run know of each other, without TensorFlow's help: plain sockets, before and beside its own.

They meet on the chief's address before TensorFlow takes it over: the listening socket is closed, the connections stay.
Over these each worker then shows that it lives. A killed one closes its connection; a stopped or hanging one falls
silent, which no collective would notice for minutes, if ever.
"""

import contextlib
import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from core.distribution.cluster import Cluster
from core.errors import ConfigurationError, PeerLostError

_MAGIC = b"TAPE"
_LIMIT = 1 << 20  # bytes of a message; a stranger's nonsense isn't read to its end
_RESTART = "Look at its log, and start all workers again."


class Peers:
    """This worker's connections: the chief's to everybody, everybody's to the chief."""

    def __init__(self, cluster: Cluster, connections: Mapping[int, socket.socket]):
        self.cluster, self.connections = cluster, dict(connections)
        self.lost: str | None = None
        self._known = threading.Event()
        self._left = threading.Event()
        self._sending = threading.Lock()
        self._gone: set[int] = set()

    @classmethod
    def meet(cls, cluster: Cluster, *, about: Mapping[str, str], deadline: float) -> "Peers":
        """Waits for all workers, at most `deadline` seconds; they must be in the same cluster and agree in `about`."""
        if cluster.size == 1:
            return cls(cluster, {})
        until = time.monotonic() + deadline
        hello = {"index": cluster.index, "workers": list(cluster.workers), "about": dict(about)}
        if cluster.is_chief:
            return cls(cluster, _receive_all(cluster, hello, until, deadline))
        return cls(cluster, {0: _join_chief(cluster, hello, until, deadline)})

    def watch(self, *, timeout: float, on_lost: Callable[[str], None]) -> None:
        """Starts to show life and to look for it; calls `on_lost` once, in its own thread, with a sentence."""
        if self.connections:
            threading.Thread(target=self._beat, args=(timeout,), daemon=True, name="heartbeat").start()
            threading.Thread(target=self._listen, args=(timeout, on_lost), daemon=True, name="watch of peers").start()

    def wait_for_word(self, seconds: float) -> str | None:
        """Who was lost, as soon as it is known; `None` if nobody is after some time."""
        self._known.wait(seconds)
        return self.lost

    def leave(self, reason: str | None = None) -> None:
        """Says goodbye, so that the closed connection isn't taken for a loss; with a reason it is one."""
        if self._left.is_set():
            return
        self._left.set()
        for connection in self.connections.values():
            with contextlib.suppress(OSError), self._sending:
                _send(connection, {"bye": reason})
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)

    # --- threads -----------------------------------------------------------------------------------------------------

    def _beat(self, timeout: float) -> None:
        while not self._left.wait(min(1.0, timeout / 4)):
            for connection in list(self.connections.values()):
                with contextlib.suppress(OSError), self._sending:
                    _send(connection, {"alive": True})

    def _listen(self, timeout: float, on_lost: Callable[[str], None]) -> None:
        heard = dict.fromkeys(self.connections, time.monotonic())
        looked = time.monotonic()
        while not self._left.is_set() and self.lost is None and len(self._gone) < len(self.connections):
            waiting = {c: i for i, c in self.connections.items() if i not in self._gone}
            ready, _, _ = select.select(list(waiting), [], [], min(0.5, timeout / 4))
            now = time.monotonic()
            if now - looked > timeout / 2:
                # This process itself was stopped, or starved: the silence may be its own.
                heard = dict.fromkeys(heard, now)
            looked = now
            for connection in ready:
                index = waiting[connection]
                heard[index] = now
                self._take(index, connection)
            for index in waiting.values():
                if now - heard[index] > timeout and index not in self._gone:
                    self._lose(index, f"hasn't been heard of for {timeout:g} s: it hangs or is stopped")
        if self.lost is not None:
            self._known.set()
            on_lost(self.lost)

    def _take(self, index: int, connection: socket.socket) -> None:
        """One message of a worker."""
        try:
            message = _receive(connection)
        except OSError:
            message = None
        if message is None:
            self._lose(index, "was killed, or its machine is gone: its connection closed")
        elif "lost" in message and self.lost is None:
            self.lost = str(message["lost"])
        elif "bye" in message:
            self._gone.add(index)
            if message["bye"] is not None:
                self._lose(index, f"ended: {message['bye']}")

    def _lose(self, index: int, how: str) -> None:
        self._gone.add(index)
        if self.lost is not None or self._left.is_set():
            return
        self.lost = f"{_name(self.cluster, index)} {how}"
        for other, connection in self.connections.items():
            with contextlib.suppress(OSError), self._sending:
                _send(connection, {"lost": "this worker was given up by the others" if other == index else self.lost})


# --- meeting ----------------------------------------------------------------------------------------------------------


def _receive_all(cluster: Cluster, hello: Mapping[str, Any], until: float, deadline: float) -> dict[int, socket.socket]:
    """The chief's part."""
    connections: dict[int, socket.socket] = {}
    refusal: ConfigurationError | PeerLostError | None = None
    with _listening(cluster) as listener:
        while len(connections) < cluster.size - 1 and refusal is None:
            left = until - time.monotonic()
            if left <= 0 or not select.select([listener], [], [], min(left, 0.5))[0]:
                if left > 0:
                    continue
                missing = [_name(cluster, i) for i in range(1, cluster.size) if i not in connections]
                refusal = PeerLostError(f"{', '.join(missing)} didn't come within {deadline:g} s. {_RESTART}")
                break
            connection, _ = listener.accept()
            theirs = _greeting(connection)
            if theirs is None:
                connection.close()  # a stranger
                continue
            refusal = _objection(cluster, hello, theirs, connections)
            if theirs.get("index") in connections or refusal is not None:
                with contextlib.suppress(OSError):
                    _send(connection, {"refused": str(refusal), "code": refusal.exit_code if refusal else 2})
            if refusal is None:
                connections[theirs["index"]] = connection
    for connection in connections.values():
        with contextlib.suppress(OSError):
            _send(connection, {"refused": str(refusal), "code": refusal.exit_code} if refusal else {"go": True})
            connection.settimeout(None)
    if refusal is not None:
        raise refusal
    return connections


def _objection(
    cluster: Cluster, hello: Mapping[str, Any], theirs: Mapping[str, Any], connections: Mapping[int, Any]
) -> ConfigurationError | None:
    """Why a worker can't take part."""
    index: Any = theirs["index"]
    if theirs.get("workers") != hello["workers"]:
        return ConfigurationError(
            f"worker {index} was given the cluster {theirs.get('workers')}, the chief {hello['workers']}: give all "
            "workers the same `TF_CONFIG.cluster`."
        )
    if index == 0 or index in connections:
        return ConfigurationError(
            f"two processes are worker {index} ({cluster.workers[index]}): give each its own `TF_CONFIG.task.index`."
        )
    mine, its = hello["about"], theirs.get("about", {})
    differs = [key for key in sorted({*mine, *its}) if mine.get(key) != its.get(key)]
    if differs:
        said = "; ".join(f"`{key}` is {mine.get(key)} for the chief and {its.get(key)} there" for key in differs)
        return ConfigurationError(
            f"worker {index} runs something else than the chief: {said}. Start all workers with the same flags, files "
            "and packages."
        )
    return None


def _join_chief(cluster: Cluster, hello: Mapping[str, Any], until: float, deadline: float) -> socket.socket:
    """Every other worker's part."""
    host, _, port = cluster.workers[0].rpartition(":")
    while time.monotonic() < until:
        try:
            connection = socket.create_connection((host, int(port)), timeout=max(0.1, until - time.monotonic()))
        except OSError:
            time.sleep(0.2)
            continue
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _send(connection, hello)
            connection.settimeout(max(0.1, until - time.monotonic()) + 5.0)  # the chief has the first say on lateness
            answer = _receive(connection)
            if answer is not None and "go" in answer:
                connection.settimeout(None)
                return connection
            if answer is not None and "refused" in answer:
                connection.close()
                kind = PeerLostError if answer.get("code") == PeerLostError.exit_code else ConfigurationError
                raise kind(str(answer["refused"]))
        connection.close()  # not the chief, or one that has just died: perhaps another comes
        time.sleep(0.2)
    raise PeerLostError(
        f"the chief, {_name(cluster, 0)}, didn't answer within {deadline:g} s. Does it run, and can this machine "
        f"reach it? {_RESTART}"
    )


@contextlib.contextmanager
def _listening(cluster: Cluster) -> Any:
    host, _, port = cluster.address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # So that TensorFlow can have the port while the connections made here stay open.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host if host in ("127.0.0.1", "localhost") else "", int(port)))
        except OSError as error:
            raise ConfigurationError(
                f"worker {cluster.index} can't listen on {cluster.address} ({error.strerror}): another process has the "
                "port, perhaps a second one with the same `TF_CONFIG.task.index`. End it, or choose another port."
            ) from None
        listener.listen(cluster.size + 8)
        yield listener


def _greeting(connection: socket.socket) -> dict[str, Any] | None:
    connection.settimeout(5.0)
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message = _receive(connection)
        if message is not None and {"index", "workers", "about"} <= message.keys():
            return message
    return None


def _name(cluster: Cluster, index: int) -> str:
    return f"worker {index} ({cluster.workers[index]})"


# --- messages ---------------------------------------------------------------------------------------------------------


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    content = json.dumps(message).encode()
    connection.sendall(_MAGIC + struct.pack("!I", len(content)) + content)


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """One message; `None` at the end of the connection, or for nonsense."""
    head = _exactly(connection, 8)
    if head is None or head[:4] != _MAGIC:
        return None
    (length,) = struct.unpack("!I", head[4:])
    content = _exactly(connection, length) if length <= _LIMIT else None
    try:
        message = json.loads(content) if content is not None else None
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            return None
        found += more
    return found
