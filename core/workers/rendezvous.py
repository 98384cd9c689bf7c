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
from core.workers.channel import PATIENCE, TICK, Link, say_last, tell
from core.workers.cluster import Cluster

_NEXT = "Look at its log, and start all workers again."


def gather(cluster: Cluster, hello: Mapping[str, Any], deadline: float) -> dict[int, Link]:
    """The chief's part: lets everybody come, and tells all the same."""
    until = time.monotonic() + deadline
    told, objection, objected = 0.0, None, float("inf")
    with _listening(cluster, hello) as listener, contextlib.closing(_Guests(listener, hello)) as guests:
        while True:
            changed, now = guests.look(), time.monotonic()
            here = {theirs["index"]: link for link, theirs in guests.hellos.items()}
            missing = [cluster.name(i) for i in range(1, cluster.size) if i not in here]
            objection = _objection([hello, *guests.hellos.values()]) if changed else objection
            # Whoever is still on the way should hear of it, and not knock in vain until the deadline.
            objected = min(objected, now) if objection else float("inf")
            if not missing or now > min(until, objected + PATIENCE):
                break
            if changed or now - told > 1.0:
                told = now
                tell(guests.hellos, {"wait": True})
            time.sleep(TICK)
        refusal: ConfigurationError | PeerLostError | None = objection
        if missing and not objection:
            refusal = PeerLostError(f"{', '.join(missing)} didn't come within {deadline:g} s. {_NEXT}")
        if refusal is not None:
            say_last(guests.hellos, {"refused": str(refusal), "code": refusal.exit_code})
            raise refusal
        tell(guests.hellos, {"go": True})
        guests.hellos.clear()  # these stay open
        return here


class _Guests:
    """Who has come to the chief. No single one is waited for: one who says nothing holds up nobody."""

    def __init__(self, listener: socket.socket, hello: Mapping[str, Any]):
        listener.setblocking(False)
        self.listener, self.hello = listener, hello
        self.strangers: dict[Link, float] = {}  # since when
        self.hellos: dict[Link, dict[str, Any]] = {}

    def look(self) -> bool:
        """Lets in who knocks, shows out who talks nonsense; whether the guests are others than before."""
        before, now = list(self.hellos), time.monotonic()
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                self.strangers[Link(self.listener.accept()[0])] = now
        for link, since in list(self.strangers.items()):
            said = next(link.messages(), None)
            if said is None and not link.closed and now - since < PATIENCE:
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
        "packages, and in one workdir that they share."
    )


def join(cluster: Cluster, hello: Mapping[str, Any], deadline: float) -> dict[int, Link]:
    """Every other worker's part: knocks until the chief opens, and does as it says."""
    until, trouble = time.monotonic() + deadline, "nobody listens there"
    while time.monotonic() < until:
        with contextlib.ExitStack() as stack:
            try:
                link = Link(_connect(cluster.workers[0]))
            except OSError as error:
                trouble = error.strerror or str(error)
            else:
                stack.callback(link.close)
                trouble = _ask(link, hello, until)
                if not trouble:
                    stack.pop_all()
                    return {0: link}
        time.sleep(4 * TICK)
    raise PeerLostError(
        f"the chief, {cluster.name(0)}, didn't answer within {deadline:g} s ({trouble}). Does it run, and can this "
        f"machine reach it? {_NEXT}"
    )


def _ask(link: Link, hello: Mapping[str, Any], until: float) -> str:
    """Empty if the chief says go, else why it doesn't; raises what it refuses."""
    link.send(hello)
    heard = 0.0
    # Whom the chief speaks to waits as long as the chief does: so all hear the same reason.
    while not link.closed and time.monotonic() < max(until, heard + PATIENCE):
        link.flush()
        for message in link.messages():
            heard = time.monotonic()
            if "go" in message:
                return ""
            if "refused" in message:
                kind = PeerLostError if message["code"] == PeerLostError.exit_code else ConfigurationError
                raise kind(message["refused"])
        time.sleep(TICK)
    stranger = "what listens there isn't waiting for workers: another run, or another program"
    return "it was there, but has ended or hangs" if heard else stranger


def _connect(address: str) -> socket.socket:
    connection = socket.create_connection(_host_and_port(address), timeout=PATIENCE)
    if connection.getsockname() == connection.getpeername():
        # Where nobody listens at a port that the system may give to this very connection, it can be its own other end.
        connection.close()
        raise OSError("nobody listens there")
    return connection


def _listening(cluster: Cluster, hello: Mapping[str, Any]) -> socket.socket:
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
            if error.errno == errno.EADDRINUSE and time.monotonic() > until:
                # Is it another chief that waits, it should hear of this one, and refuse both.
                with contextlib.suppress(OSError), contextlib.closing(Link(_connect(cluster.address))) as link:
                    _ask(link, hello, time.monotonic() + 1.0)
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise ConfigurationError(
                    f"worker 0 can't listen at {cluster.address} ({os.strerror(error.errno or 0)}): another process of "
                    "the cluster, a second one with the index 0 perhaps, or something else has this port. End it, or "
                    "choose another port in `TF_CONFIG.cluster`."
                ) from None
            time.sleep(TICK)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
