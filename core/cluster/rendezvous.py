"""The rendezvous of a run's workers. All connect to the chief, and none continues until all have connected.

Errors name the differences between workers: another cluster, a duplicate index, another configuration. Chief and
workers reject a process that doesn't know the run's token.
"""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from core.cluster.admission import STRANGERS, Guests
from core.cluster.channel import ANSWER_SECONDS, POLL_SECONDS, Channel, broadcast, broadcast_and_close
from core.cluster.handshake import TOKEN, drawn, is_same, proof
from core.cluster.port_check import knock, opened
from core.cluster.topology import Cluster
from core.errors import ConfigurationError, PeerLostError

_NEXT = "Look at its log, and start all workers again."


def gather(cluster: Cluster, hello: Mapping[str, Any], token: str, deadline: float) -> dict[int, Channel]:
    """The chief's side: accepts all workers, and sends each the same answer. Returns `{index: channel}`."""
    until = time.monotonic() + deadline
    sent, objection, objected = 0.0, None, float("inf")
    with contextlib.closing(Guests(_listening(cluster, hello, token), hello, token)) as guests:
        while True:
            changed, now = guests.look(), time.monotonic()
            here = {theirs["index"]: channel for channel, theirs in guests.hellos.items()}
            missing = [cluster.name(i) for i in range(1, cluster.size) if i not in here]
            objection = _objection([hello, *guests.hellos.values()]) if changed else objection
            # Workers still on the way should hear of it too, instead of trying until the deadline.
            objected = min(objected, now) if objection else float("inf")
            if not missing or now > min(until, objected + ANSWER_SECONDS):
                break
            if changed or now - sent > 1.0:
                sent = now
                broadcast(guests.hellos, {"wait": True})
            time.sleep(POLL_SECONDS)
        refusal: ConfigurationError | PeerLostError | None = objection
        if missing and not objection:
            away = f" ({guests.turned_away} who came knew another `{TOKEN}`, or none)" if guests.turned_away else ""
            refusal = PeerLostError(f"{', '.join(missing)} didn't come within {deadline:g} s{away}. {_NEXT}")
        if refusal is not None:
            broadcast_and_close(guests.hellos, {"refused": str(refusal), "code": refusal.exit_code})
            raise refusal
        broadcast(guests.hellos, {"go": True})
        guests.hellos.clear()  # these connections stay open
        return here


def _objection(hellos: list[Mapping[str, Any]]) -> ConfigurationError | None:
    """Returns an error if the processes can't be one run, else None. The chief's hello is the first of `hellos`."""
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


def join(cluster: Cluster, hello: Mapping[str, Any], token: str, deadline: float) -> dict[int, Channel]:
    """A worker's side: tries to connect until the chief answers. Returns `{0: channel to the chief}`."""
    until, trouble = time.monotonic() + deadline, "nobody listens there"
    while time.monotonic() < until:
        with contextlib.ExitStack() as stack:
            try:
                channel = Channel(knock(cluster.workers[0]))
            except OSError as error:
                trouble = error.strerror or str(error)
            else:
                stack.callback(channel.close)
                # Without a token, an impostor can't be told from the chief, and must not block a worker for ever.
                said = ask(channel, hello, token, until, float("inf") if token else until)
                trouble = _STRANGER if trouble == _STRANGER else said
                if not said:
                    stack.pop_all()
                    return {0: channel}
        time.sleep(4 * POLL_SECONDS)
    raise PeerLostError(
        f"the chief, {cluster.name(0)}, didn't answer within {deadline:g} s ({trouble}). Does it run, and can this "
        f"machine reach it? {_NEXT}"
    )


def ask(channel: Channel, hello: Mapping[str, Any], token: str, until: float, limit: float) -> str:
    """Returns "" if the chief answers that the run starts, else the reason. A refusal raises an error.

    While the chief reports that it waits, this process waits too, up to the time `limit`.
    """
    mine, expected, proven = drawn(), None, False
    while not channel.closed and time.monotonic() < until:
        for message in channel.messages():
            match message:
                case {"challenge": str(theirs)} if expected is None:
                    expected = proof(token, "chief", theirs, mine, hello)
                    shown = proof(token, "worker", theirs, mine, hello)
                    channel.send({"hello": hello, "answer": mine, "proof": shown})
                case {"welcome": str(shown)} if expected is not None and is_same(shown, expected):
                    proven = True
                case {"stranger": True}:
                    return _STRANGER
                case {"wait": True} if proven:
                    until = max(until, min(limit, time.monotonic() + ANSWER_SECONDS))
                case {"go": True} if proven:
                    return ""
                case {"refused": str(reason), "code": int(code)} if proven:
                    raise (PeerLostError if code == PeerLostError.exit_code else ConfigurationError)(reason)
                case _:
                    return _OTHER
        channel.flush()
        time.sleep(POLL_SECONDS)
    if proven and not channel.closed:
        return "it is there, but waits for others"
    return "it was there, but has ended or hangs" if proven else _OTHER


_STRANGER = f"who listens there knows another `{TOKEN}`, or none"
_OTHER = "what listens there isn't waiting for workers: another run, or another program"


def _listening(cluster: Cluster, hello: Mapping[str, Any], token: str) -> list[socket.socket]:
    """Opens the chief's listening sockets. If another process has the port, raises a `ConfigurationError`."""
    try:
        return opened(cluster, backlog=cluster.size + STRANGERS)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            # If another chief waits there, it should hear of this one, and refuse both.
            with contextlib.suppress(OSError), contextlib.closing(Channel(knock(cluster.address))) as channel:
                now = time.monotonic()
                ask(channel, hello, token, now + 1.0, now + 2 * ANSWER_SECONDS)
        raise ConfigurationError(
            f"worker 0 can't listen at {cluster.address} ({os.strerror(error.errno or 0)}): another process of the "
            "cluster, a second one with the index 0 perhaps, or something else has this port. End it, or choose "
            "another port in `TF_CONFIG.cluster`."
        ) from None
