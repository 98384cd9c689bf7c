"""Messages between two processes over one connection, without ever waiting for the other end."""

import contextlib
import json
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

TICK = 0.05  # seconds between two looks at the connections, where somebody waits for them
PATIENCE = 5.0  # seconds for what takes milliseconds if all is well

_MAGIC = b"TAPE"
_LIMIT = 1 << 20  # bytes of a message; a stranger's nonsense isn't read to its end


class Link:
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


def tell(links: Iterable[Link], message: Mapping[str, Any]) -> None:
    for link in links:
        link.send(message)


def say_last(links: Collection[Link], message: Mapping[str, Any]) -> None:
    """Says it and closes, once the others have closed too.

    To close with messages unread would break the connection off, and the last word might be lost with it.
    """
    tell(links, message)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and not all(link.closed for link in links):
        for link in links:
            if link.flush():
                link.finish()
            for _ in link.messages():
                pass
        time.sleep(TICK)
    for link in links:
        link.close()
