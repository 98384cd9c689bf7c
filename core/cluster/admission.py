"""The chief admits workers before a run. Processes without the token neither block it nor learn anything."""

import collections
import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from core.cluster.channel import ANSWER_SECONDS, Channel
from core.cluster.handshake import TOKEN, drawn, is_same, proof

PATIENCE_SECONDS = 1.0  # enough for a worker's answer, from any distance
STRANGERS = 64  # unproven connections at a time: each costs a file descriptor and memory


class Guests:
    """The connections of waiting workers to the chief. A silent connection doesn't block others."""

    def __init__(self, listeners: Sequence[socket.socket], hello: Mapping[str, Any], token: str):
        for listener in listeners:
            listener.setblocking(False)
        self.listeners, self.hello, self.token = listeners, hello, token
        self.strangers: dict[Channel, tuple[float, str, str]] = {}  # since when, from where, and their challenge
        self.hellos: dict[Channel, dict[str, Any]] = {}
        self.turned_away = 0

    def look(self) -> bool:
        """Accepts new connections, and drops those that fail the proof. Returns whether the admitted ones changed."""
        before, now = list(self.hellos), time.monotonic()
        for channel, (since, origin, challenge) in list(self.strangers.items()):
            said = next(channel.messages(), None)
            if said is None and not channel.closed and now - since < ANSWER_SECONDS:
                channel.flush()
                continue
            del self.strangers[channel]
            hello = self._hello(channel, origin, challenge, said)
            if hello is None:
                channel.close()
            else:
                self.hellos[channel] = hello
        for listener in self.listeners:  # after reading from all: a connection that answered is no stranger
            self._let_in(listener, now)
        for channel in list(self.hellos):
            channel.flush()
            for _ in channel.messages():
                pass
            if channel.closed:  # it may connect again
                channel.close()
                del self.hellos[channel]
        return before != list(self.hellos)

    def _let_in(self, listener: socket.socket, now: float) -> None:
        """Accepts the connections that wait at `listener`, up to the limit for unproven ones."""
        with contextlib.suppress(OSError):
            while len(self.strangers) < STRANGERS or self._dispensable(now):
                connection, origin = listener.accept()
                if len(self.strangers) >= STRANGERS and (leaving := self._dispensable(now)):
                    del self.strangers[leaving]
                    leaving.close()
                channel, challenge = Channel(connection), drawn()
                channel.send({"challenge": challenge})
                self.strangers[channel] = now, str(origin[0]), challenge

    def _dispensable(self, now: float) -> Channel | None:
        """Returns the unproven connection to drop for a new one: an overdue one from the most frequent address.

        A worker answers at once, and few connections come from its address. So no worker is dropped before its
        admission.
        """
        crowd, _ = collections.Counter(origin for _, origin, _ in self.strangers.values()).most_common(1)[0]
        for channel, (since, origin, _) in self.strangers.items():
            if origin == crowd and now - since > PATIENCE_SECONDS:
                return channel
        return None

    def _hello(
        self, channel: Channel, origin: str, challenge: str, said: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """Returns the hello of a peer that knows the token. A peer with a wrong proof gets a refusal."""
        match said:
            case {"hello": dict(hello), "answer": str(answer), "proof": str(shown)}:
                if not is_same(shown, proof(self.token, "worker", challenge, answer, hello)):
                    self._turn_away(channel, origin)
                elif all(type(hello.get(key)) is type(value) for key, value in self.hello.items()):
                    channel.send({"welcome": proof(self.token, "chief", challenge, answer, hello)})
                    return hello
        return None

    def _turn_away(self, channel: Channel, origin: str) -> None:
        channel.send({"stranger": True})
        self.turned_away += 1
        if self.turned_away == 1:
            print(f"Warning: turned away {origin}, who knows another `{TOKEN}`, or none.", flush=True)

    def close(self) -> None:
        """Closes the listeners and all connections."""
        for listener in self.listeners:
            listener.close()
        for channel in (*self.strangers, *self.hellos):
            channel.close()
