"""The workers of one run know of each other, without TensorFlow's help: plain sockets, before and beside its own.

They meet on the chief's address before TensorFlow takes it over: the listening socket is closed, the connections stay.
Over these each worker then shows that it lives. A killed one closes its connection; a stopped or hanging one falls
silent, which no collective would notice for minutes, if ever. The chief hears everybody, everybody hears the chief, and
the chief tells all who was lost, so that all say the same.
"""

import contextlib
import errno
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from core.distribution.cluster import Cluster
from core.errors import ConfigurationError, PeerLostError

_TICK = 0.05  # seconds between two looks at the connections, where somebody waits for them
_PATIENCE = 5.0  # seconds for what takes milliseconds if all is well
_NEXT = "Look at its log, and start all workers again."


class Peers:
    """This worker's connections: the chief's to everybody, everybody's to the chief."""

    def __init__(self, cluster: Cluster, links: Mapping[int, "_Link"]):
        self.cluster = cluster
        self.lost: str | None = None
        self._links = dict(links)  # the watching thread's alone, while it runs
        self._known, self._leaving, self._quiet = threading.Event(), threading.Event(), threading.Event()
        self._quiet.set()  # nobody watches
        self._lock = threading.Lock()

    @classmethod
    def meet(cls, cluster: Cluster, *, about: Mapping[str, str], deadline: float) -> "Peers":
        """Waits for all workers, at most `deadline` seconds; they must be in the same cluster and agree in `about`."""
        if cluster.size == 1:
            return cls(cluster, {})
        hello = {
            "index": cluster.index,
            "workers": list(cluster.workers),
            "about": dict(about),
            "who": f"process {os.getpid()} on {socket.gethostname()}",
        }
        return cls(cluster, (_gather if cluster.is_chief else _join)(cluster, hello, deadline))

    def watch(self, *, timeout: float, on_lost: Callable[[str], None]) -> None:
        """Starts to show life and to look for it; calls `on_lost` once, in its own thread, with a sentence."""
        if not self._links or self._leaving.is_set():
            return
        self._quiet.clear()
        threading.Thread(target=self._watch, args=(timeout, on_lost), daemon=True, name="watch of peers").start()

    def wait_for_word(self, seconds: float) -> str | None:
        """Who was lost, as soon as it is known; `None` if nobody is after some time."""
        self._known.wait(seconds)
        return self.lost

    def leave(self, reason: str | None = None) -> None:
        """Says goodbye, so that the closed connection isn't taken for a loss; with a reason it is one."""
        with self._lock:
            if self._leaving.is_set():
                return
            self._leaving.set()
        self._quiet.wait(_PATIENCE)
        _say_last(self._links.values(), {"bye": reason})
        self._links.clear()

    def _watch(self, timeout: float, on_lost: Callable[[str], None]) -> None:
        """The watching thread."""
        pause, beat = min(0.2, timeout / 8), min(1.0, timeout / 4)
        looked = time.monotonic()
        heard, shown = dict.fromkeys(self._links, looked), looked - beat
        while self._links and self.lost is None and not self._leaving.wait(pause):
            now = time.monotonic()
            if now - looked > timeout / 2:  # this process itself was stopped, or starved: the silence may be its own
                heard = dict.fromkeys(heard, now)
            looked = now
            for index in self._read():
                heard[index] = now
            for index in list(self._links):
                if now - heard[index] > timeout:
                    self._lose(index, f"hasn't been heard of for {timeout:g} s: it hangs or is stopped")
            if now - shown >= beat:
                shown = now
                _tell(self._links.values(), {"alive": True})
        self._quiet.set()
        if self.lost is not None:
            self._known.set()
            on_lost(self.lost)

    def _read(self) -> Iterator[int]:
        """Takes in what the others have said, and yields who has said anything."""
        for index, link in list(self._links.items()):
            link.flush()
            for message in link.messages():
                yield index
                if "lost" in message:
                    self._lose(int(message["lost"]), str(message["how"]))
                elif "bye" in message:
                    self._links.pop(index).close()
                    if message["bye"] is not None:
                        self._lose(index, f"ended: {message['bye']}")
                    break
            if link.closed and index in self._links:
                self._lose(index, "was killed or its machine is gone: its connection closed")

    def _lose(self, index: int, how: str) -> None:
        """The run is over. The first loss is the one that counts, for everybody."""
        if self.lost is not None:
            return
        self.lost = f"{_name(self.cluster, index)} {how}"
        if index == self.cluster.index:
            self.lost = f"the others have given up this worker, and say that {self.lost}"
        for link in self._links.values():
            link.send({"lost": index, "how": how})
            link.finish()
        if index in self._links:
            self._links.pop(index).close()


# --- meeting ----------------------------------------------------------------------------------------------------------


def _gather(cluster: Cluster, hello: Mapping[str, Any], deadline: float) -> dict[int, "_Link"]:
    """The chief's part: lets everybody come, and tells all the same."""
    until = time.monotonic() + deadline
    told, objection, objected = 0.0, None, float("inf")
    with _listening(cluster) as listener, contextlib.closing(_Guests(listener, hello)) as guests:
        while True:
            changed, now = guests.look(), time.monotonic()
            here = {theirs["index"]: link for link, theirs in guests.hellos.items()}
            missing = [_name(cluster, i) for i in range(1, cluster.size) if i not in here]
            objection = _objection([hello, *guests.hellos.values()]) if changed else objection
            # Whoever is still on the way should hear of it, and not knock in vain until the deadline.
            objected = min(objected, now) if objection else float("inf")
            if not missing or now > min(until, objected + _PATIENCE):
                break
            if changed or now - told > 1.0:
                told = now
                _tell(guests.hellos, {"wait": True})
            time.sleep(_TICK)
        refusal: ConfigurationError | PeerLostError | None = objection
        if missing and not objection:
            refusal = PeerLostError(f"{', '.join(missing)} didn't come within {deadline:g} s. {_NEXT}")
        if refusal is not None:
            _say_last(guests.hellos, {"refused": str(refusal), "code": refusal.exit_code})
            raise refusal
        _tell(guests.hellos, {"go": True})
        guests.hellos.clear()  # these stay open
        return here


class _Guests:
    """Who has come to the chief. No single one is waited for: one who says nothing holds up nobody."""

    def __init__(self, listener: socket.socket, hello: Mapping[str, Any]):
        listener.setblocking(False)
        self.listener, self.hello = listener, hello
        self.strangers: dict[_Link, float] = {}  # since when
        self.hellos: dict[_Link, dict[str, Any]] = {}

    def look(self) -> bool:
        """Lets in who knocks, shows out who talks nonsense; whether the guests are others than before."""
        before, now = list(self.hellos), time.monotonic()
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                self.strangers[_Link(self.listener.accept()[0])] = now
        for link, since in list(self.strangers.items()):
            said = next(link.messages(), None)
            if said is None and not link.closed and now - since < _PATIENCE:
                continue
            del self.strangers[link]
            if said is not None and all(type(said.get(key)) is type(x) for key, x in self.hello.items()):
                self.hellos[link] = said
            else:
                link.close()
        for link in list(self.hellos):
            link.flush()
            for _ in link.messages():
                pass
            if link.closed:  # it may come again
                link.close()
                del self.hellos[link]
        return before != list(self.hellos)

    def close(self) -> None:
        for link in (*self.strangers, *self.hellos):
            link.close()


def _objection(hellos: list[Mapping[str, Any]]) -> ConfigurationError | None:
    """Why those who have come can't be one run; the chief is the first of them."""
    workers = hellos[0]["workers"]
    for hello in hellos:
        if hello["workers"] != workers or not 0 <= hello["index"] < len(workers):
            return ConfigurationError(
                f"worker {hello['index']} ({hello['who']}) was given the cluster {hello['workers']}, the chief "
                f"{workers}: give all workers the same `TF_CONFIG.cluster`."
            )
    places: dict[int, str] = {}
    for hello in hellos:
        index, who = hello["index"], hello["who"]
        if index in places:
            return ConfigurationError(
                f"two processes are worker {index} ({workers[index]}): {places[index]} and {who}. Give each its own "
                "`TF_CONFIG.task.index`."
            )
        places[index] = who
    differs = []
    for key in sorted({key for hello in hellos for key in hello["about"]}):
        holders: dict[str, list[int]] = {}
        for hello in hellos:
            holders.setdefault(str(hello["about"].get(key, "not given")), []).append(hello["index"])
        if len(holders) > 1:
            said = [f"{value} for worker {', '.join(map(str, sorted(i)))}" for value, i in holders.items()]
            differs.append(f"`{key}` is {' and '.join(said)}")
    if not differs:
        return None
    return ConfigurationError(
        f"the workers don't run the same: {'; '.join(differs)}. Start all of them with the same flags, files and "
        "packages."
    )


def _join(cluster: Cluster, hello: Mapping[str, Any], deadline: float) -> dict[int, "_Link"]:
    """Every other worker's part: knocks until the chief opens, and does as it says."""
    until, trouble = time.monotonic() + deadline, "nobody listens there"
    while time.monotonic() < until:
        with contextlib.ExitStack() as stack:
            try:
                link = _Link(_connect(cluster.workers[0]))
            except OSError as error:
                trouble = error.strerror or str(error)
            else:
                stack.callback(link.close)
                trouble = _ask(link, hello, until)
                if not trouble:
                    stack.pop_all()
                    return {0: link}
        time.sleep(4 * _TICK)
    raise PeerLostError(
        f"the chief, {_name(cluster, 0)}, didn't answer within {deadline:g} s ({trouble}). Does it run, and can this "
        f"machine reach it? {_NEXT}"
    )


def _ask(link: "_Link", hello: Mapping[str, Any], until: float) -> str:
    """Empty if the chief says go, else why it doesn't; raises what it refuses."""
    link.send(hello)
    heard = 0.0
    # Whom the chief speaks to waits as long as the chief does: so all hear the same reason.
    while not link.closed and time.monotonic() < max(until, heard + _PATIENCE):
        link.flush()
        for message in link.messages():
            heard = time.monotonic()
            if "go" in message:
                return ""
            if "refused" in message:
                kind = PeerLostError if message["code"] == PeerLostError.exit_code else ConfigurationError
                raise kind(message["refused"])
        time.sleep(_TICK)
    stranger = "what listens there isn't waiting for workers: another run, or another program"
    return "it was there, but has ended or hangs" if heard else stranger


def _connect(address: str) -> socket.socket:
    connection = socket.create_connection(_host_and_port(address), timeout=_PATIENCE)
    if connection.getsockname() == connection.getpeername():
        # Where nobody listens at a port that the system may give to this very connection, it can be its own other end.
        connection.close()
        raise OSError("nobody listens there")
    return connection


def _listening(cluster: Cluster) -> socket.socket:
    """The chief's own port. `create_server` lets it be taken again while the connections made here stay open."""
    host, port = _host_and_port(cluster.address)
    families = {socket.AF_INET}
    with contextlib.suppress(OSError):  # not every machine knows its own name
        families = {found[0] for found in socket.getaddrinfo(host, port)}
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    local = host if host in ("localhost", "::1") or host.startswith("127.") else ""
    until = time.monotonic() + 2.0  # seconds in which a process that is just ending frees the port
    while True:
        try:
            return socket.create_server((local, port), family=family, backlog=cluster.size + 16)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise ConfigurationError(
                    f"worker 0 can't listen at {cluster.address} ({os.strerror(error.errno or 0)}): another process of "
                    "the cluster, a second one with the index 0 perhaps, or something else has this port. End it, or "
                    "choose another port in `TF_CONFIG.cluster`."
                ) from None
            time.sleep(_TICK)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _name(cluster: Cluster, index: int) -> str:
    return f"worker {index} ({cluster.workers[index]})"


# --- messages ---------------------------------------------------------------------------------------------------------

_MAGIC = b"TAPE"
_LIMIT = 1 << 20  # bytes of a message; a stranger's nonsense isn't read to its end


class _Link:
    """One connection, read and written without ever waiting for the other end."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.closed = False  # by the other end, or because it talks nonsense
        self._connection = connection
        self._incoming, self._outgoing = b"", b""

    def send(self, message: Mapping[str, Any]) -> None:
        """As far as the other end takes it in; the rest goes with the next `flush`."""
        content = json.dumps(message).encode()
        self._outgoing += _MAGIC + struct.pack("!I", len(content)) + content
        self.flush()

    def flush(self) -> bool:
        """Whether all is sent."""
        with contextlib.suppress(OSError):  # a closed connection shows in reading
            while self._outgoing:
                self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]
        return not self._outgoing

    def messages(self) -> Iterator[dict[str, Any]]:
        """What has come, one by one."""
        try:
            while not self.closed and len(self._incoming) <= _LIMIT:
                more = self._connection.recv(1 << 16)
                self.closed = not more
                self._incoming += more
        except OSError as error:
            self.closed = not isinstance(error, BlockingIOError)
        while len(self._incoming) >= 8:
            magic, length = struct.unpack("!4sI", self._incoming[:8])
            content = self._incoming[8 : 8 + length]
            if magic == _MAGIC and len(content) < length <= _LIMIT:
                return
            self._incoming = self._incoming[8 + length :]
            message = _parsed(content) if magic == _MAGIC and length <= _LIMIT else None
            if message is None:
                self.closed, self._incoming = True, b""
                return
            yield message

    def finish(self) -> None:
        """Nothing more will be said."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._connection.close()


def _parsed(content: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(content)
        return message if isinstance(message, dict) else None
    return None


def _tell(links: Iterable[_Link], message: Mapping[str, Any]) -> None:
    for link in links:
        link.send(message)


def _say_last(links: Collection[_Link], message: Mapping[str, Any]) -> None:
    """Says it and closes, once the others have closed too.

    To close with messages unread would break the connection off, and the last word might be lost with it.
    """
    _tell(links, message)
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and not all(link.closed for link in links):
        for link in links:
            if link.flush():
                link.finish()
            for _ in link.messages():
                pass
        time.sleep(_TICK)
    for link in links:
        link.close()
