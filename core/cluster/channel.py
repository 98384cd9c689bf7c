"""Sends and receives JSON messages between two processes over one connection, without blocking."""

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

POLL_SECONDS = 0.05  # between two looks at the connections while waiting
ANSWER_SECONDS = 5.0  # for an answer that takes milliseconds if all is well

_MAGIC = b"TAPE"
_LIMIT = 1 << 20  # bytes of a message; longer ones from strangers aren't read to the end
_LONGEST = 5000  # characters of a text, which may be printed on a terminal


class Channel:
    """One connection to another process. Its methods don't block."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.closed = False  # by the other end, or after an invalid message
        self._connection = connection
        self._incoming, self._outgoing = b"", b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends as much of the message as the other end accepts. The next `flush` sends the rest."""
        content = json.dumps(message).encode()
        self._outgoing += _MAGIC + struct.pack("!I", len(content)) + content
        self.flush()

    def flush(self) -> bool:
        """Sends what earlier calls left unsent; returns whether everything is sent."""
        with contextlib.suppress(OSError):  # a closed connection shows in reading
            while self._outgoing:
                self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]
        return not self._outgoing

    def messages(self) -> Iterator[dict[str, Any]]:
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

    def wait(self, seconds: float) -> None:
        """Waits at most `seconds` until the other end sends something or closes."""
        if not self.closed:
            ready = select.poll()  # `select.select` supports only a process's first 1,024 files
            ready.register(self._connection, select.POLLIN)
            ready.poll(1000.0 * seconds)

    def shutdown_write(self) -> None:
        """Tells the other end that this end sends nothing more."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the connection, even with unread messages."""
        self._connection.close()


def _parsed(content: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, RecursionError):
        message = cleaned(json.loads(content))
        return message if isinstance(message, dict) else None
    return None


def cleaned(said: Any) -> Any:
    """Returns a message with spaces for control characters in its texts, and at most 5,000 characters."""
    if isinstance(said, str):
        return "".join(x if x.isprintable() else " " for x in said[:_LONGEST])
    if isinstance(said, dict):
        return {cleaned(key): cleaned(value) for key, value in said.items()}
    return [cleaned(each) for each in said] if isinstance(said, list) else said


def broadcast(channels: Iterable[Channel], message: Mapping[str, Any]) -> None:
    for channel in channels:
        channel.send(message)


def broadcast_and_close(channels: Collection[Channel], message: Mapping[str, Any]) -> None:
    """Sends a last message on all `channels`, and closes each after its other end has closed.

    Closing a connection with unread messages would reset it, and the other end might lose the last message.
    """
    broadcast(channels, message)
    until = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < until and not all(channel.closed for channel in channels):
        for channel in channels:
            if channel.flush():
                channel.shutdown_write()
            for _ in channel.messages():
                pass
        time.sleep(POLL_SECONDS)
    for channel in channels:
        channel.close()
