"""How the workers of one run find each other: all come to the chief, who lets nobody go on before the last is there.

Here differences between them become errors that name them: another cluster, one index twice, another configuration.
"""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from core.errors import ConfigurationError, PeerLostError
from core.workers.channel import ANSWER_SECONDS, POLL_SECONDS, Channel, broadcast, broadcast_and_close
from core.workers.cluster import Cluster

_NEXT = "Look at its log, and start all workers again."


def gather(cluster: Cluster, hello: Mapping[str, Any], deadline: float) -> dict[int, Channel]:
    """Plays the chief's part: lets everybody come, and sends all the same answer."""
    until = time.monotonic() + deadline
    sent, objection, objected = 0.0, None, float("inf")
    with _listening(cluster, hello) as listener, contextlib.closing(_Guests(listener, hello)) as guests:
        while True:
            changed, now = guests.look(), time.monotonic()
            here = {theirs["index"]: channel for channel, theirs in guests.hellos.items()}
            missing = [cluster.name(i) for i in range(1, cluster.size) if i not in here]
            objection = _objection([hello, *guests.hellos.values()]) if changed else objection
            # Whoever is still on the way should hear of it, and not knock in vain until the deadline.
            objected = min(objected, now) if objection else float("inf")
            if not missing or now > min(until, objected + ANSWER_SECONDS):
                break
            if changed or now - sent > 1.0:
                sent = now
                broadcast(guests.hellos, {"wait": True})
            time.sleep(POLL_SECONDS)
        refusal: ConfigurationError | PeerLostError | None = objection
        if missing and not objection:
            refusal = PeerLostError(f"{', '.join(missing)} didn't come within {deadline:g} s. {_NEXT}")
        if refusal is not None:
            broadcast_and_close(guests.hellos, {"refused": str(refusal), "code": refusal.exit_code})
            raise refusal
        broadcast(guests.hellos, {"go": True})
        guests.hellos.clear()  # these stay open
        return here


class _Guests:
    """Holds who has come to the chief. No single one is waited for: one who says nothing holds up nobody."""

    def __init__(self, listener: socket.socket, hello: Mapping[str, Any]):
        listener.setblocking(False)
        self.listener, self.hello = listener, hello
        self.strangers: dict[Channel, float] = {}  # since when
        self.hellos: dict[Channel, dict[str, Any]] = {}

    def look(self) -> bool:
        """Lets in who connects, closes on who sends nonsense, and tells whether the guests have changed."""
        before, now = list(self.hellos), time.monotonic()
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                self.strangers[Channel(self.listener.accept()[0])] = now
        for channel, since in list(self.strangers.items()):
            said = next(channel.messages(), None)
            if said is None and not channel.closed and now - since < ANSWER_SECONDS:
                continue
            del self.strangers[channel]
            if said is not None and all(type(said.get(key)) is type(x) for key, x in self.hello.items()):
                self.hellos[channel] = said
            else:
                channel.close()
        for channel in list(self.hellos):
            channel.flush()
            for _ in channel.messages():
                pass
            if channel.closed:  # it may come again
                channel.close()
                del self.hellos[channel]
        return before != list(self.hellos)

    def close(self) -> None:
        for channel in (*self.strangers, *self.hellos):
            channel.close()


def _objection(hellos: list[Mapping[str, Any]]) -> ConfigurationError | None:
    """Returns why those who have come can't be one run; the chief is the first of them."""
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
        "packages, and in one workdir that they share."
    )


def join(cluster: Cluster, hello: Mapping[str, Any], deadline: float) -> dict[int, Channel]:
    """Plays every other worker's part: connects until the chief answers, and does as it says."""
    until, trouble = time.monotonic() + deadline, "nobody listens there"
    while time.monotonic() < until:
        with contextlib.ExitStack() as stack:
            try:
                channel = Channel(_connect(cluster.workers[0]))
            except OSError as error:
                trouble = error.strerror or str(error)
            else:
                stack.callback(channel.close)
                trouble = _ask(channel, hello, until)
                if not trouble:
                    stack.pop_all()
                    return {0: channel}
        time.sleep(4 * POLL_SECONDS)
    raise PeerLostError(
        f"the chief, {cluster.name(0)}, didn't answer within {deadline:g} s ({trouble}). Does it run, and can this "
        f"machine reach it? {_NEXT}"
    )


def _ask(channel: Channel, hello: Mapping[str, Any], until: float) -> str:
    """Returns why the chief didn't say go, or nothing if it did; raises what it refuses."""
    channel.send(hello)
    heard = 0.0
    # Whom the chief speaks to waits as long as the chief does: so all hear the same reason.
    while not channel.closed and time.monotonic() < max(until, heard + ANSWER_SECONDS):
        channel.flush()
        for message in channel.messages():
            heard = time.monotonic()
            if "go" in message:
                return ""
            if "refused" in message:
                kind = PeerLostError if message["code"] == PeerLostError.exit_code else ConfigurationError
                raise kind(message["refused"])
        time.sleep(POLL_SECONDS)
    stranger = "what listens there isn't waiting for workers: another run, or another program"
    return "it was there, but has ended or hangs" if heard else stranger


def _connect(address: str) -> socket.socket:
    connection = socket.create_connection(_host_and_port(address), timeout=ANSWER_SECONDS)
    if connection.getsockname() == connection.getpeername():
        # Where nobody listens at a port that the system may give to this very connection, it can be its own other end.
        connection.close()
        raise OSError("nobody listens there")
    return connection


def _listening(cluster: Cluster, hello: Mapping[str, Any]) -> socket.socket:
    """Opens the chief's port. `create_server` lets it be taken again while the connections made here stay open."""
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
            if error.errno == errno.EADDRINUSE and time.monotonic() > until:
                # Is it another chief that waits, it should hear of this one, and refuse both.
                with contextlib.suppress(OSError), contextlib.closing(Channel(_connect(cluster.address))) as channel:
                    _ask(channel, hello, time.monotonic() + 1.0)
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise ConfigurationError(
                    f"worker 0 can't listen at {cluster.address} ({os.strerror(error.errno or 0)}): another process of "
                    "the cluster, a second one with the index 0 perhaps, or something else has this port. End it, or "
                    "choose another port in `TF_CONFIG.cluster`."
                ) from None
            time.sleep(POLL_SECONDS)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
