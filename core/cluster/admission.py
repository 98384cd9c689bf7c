"""Who comes to the chief before a run: its workers, and strangers, who hold up nobody and learn nothing."""

import collections
import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from core.cluster.channel import ANSWER_SECONDS, Channel
from core.cluster.handshake import TOKEN, drawn, is_same, proof

PATIENCE_SECONDS = 1.0  # in which a worker has answered, from however far away
STRANGERS = 64  # who may be here at a time without having proven anything: each costs a file descriptor and memory


class Guests:
    """Holds who has come to the chief. No single one is waited for: one who says nothing holds up nobody."""

    def __init__(self, listeners: Sequence[socket.socket], hello: Mapping[str, Any], token: str):
        for listener in listeners:
            listener.setblocking(False)
        self.listeners, self.hello, self.token = listeners, hello, token
        self.strangers: dict[Channel, tuple[float, str, str]] = {}  # since when, from where, what they are to answer
        self.hellos: dict[Channel, dict[str, Any]] = {}
        self.turned_away = 0

    def look(self) -> bool:
        """Lets in who connects, turns away who proves nothing, and tells whether the guests have changed."""
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
        for listener in self.listeners:  # after those who are here were heard: who has answered is no stranger
            self._let_in(listener, now)
        for channel in list(self.hellos):
            channel.flush()
            for _ in channel.messages():
                pass
            if channel.closed:  # it may come again
                channel.close()
                del self.hellos[channel]
        return before != list(self.hellos)

    def _let_in(self, listener: socket.socket, now: float) -> None:
        """Takes in those who wait at the door, as long as there is room."""
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
        """Returns who may make room for another: the first from where most are from who has had the time to answer.

        A worker answers at once, and few come from its address: whoever else comes, it is through before its turn.
        """
        crowd, _ = collections.Counter(origin for _, origin, _ in self.strangers.values()).most_common(1)[0]
        for channel, (since, origin, _) in self.strangers.items():
            if origin == crowd and now - since > PATIENCE_SECONDS:
                return channel
        return None

    def _hello(
        self, channel: Channel, origin: str, challenge: str, said: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """Returns the hello of one who knows the token; tells anyone else who speaks well that they don't."""
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
        """Closes the door, and on all who are still here."""
        for listener in self.listeners:
            listener.close()
        for channel in (*self.strangers, *self.hellos):
            channel.close()
