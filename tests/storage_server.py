"""A real S3 server on loopback, moto's, behind a proxy that fails as a test asks."""

import contextlib
import http.client
import http.server
import logging
import os
import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.commands import Done, fork_server

EXPIRED = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
UNKNOWN = "<Error><Code>InvalidAccessKeyId</Code><Message>No such key is known.</Message></Error>"
FULL = "<Error><Code>StorageFull</Code><Message>The storage has reached its maximum.</Message></Error>"
BUSY = "<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
ANSWERS = {"expired": (400, EXPIRED), "unknown": (403, UNKNOWN), "full": (507, FULL), "busy": (503, BUSY)}


class Server:
    """The server. `fault` returns, for a request such as ("PUT", "/bucket/run/owner.json"), how it fails, or None.

    A request fails with one of `ANSWERS`, or is `cut` amid its body, or gets no answer (`silent`) until `close`, or
    half an answer (`half`).
    """

    def __init__(self) -> None:
        self.fault: Callable[[str, str], str | None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []  # that reached moto
        from moto.server import ThreadedMotoServer  # not in the forks, which import this file

        self._moto = ThreadedMotoServer("127.0.0.1", 0)
        self._moto.start()
        self._closed = threading.Event()
        self._proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        self.variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._proxy.server_port}",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        for name in ("moto", "werkzeug"):
            logging.getLogger(name).setLevel(logging.ERROR)  # each request is a line
        for method, path in (("POST", "moto-api/reset"), ("PUT", "bucket")):  # its data are the process's
            request = urllib.request.Request(f"{self.variables['AWS_ENDPOINT_URL']}/{path}", method=method)
            urllib.request.urlopen(request).close()

    def names(self, place: str) -> list[str]:
        """Returns the names of the objects in `place`, a bucket and a folder."""
        host, port = self._moto.get_host_and_port()
        bucket, _, folder = place.partition("/")
        with urllib.request.urlopen(f"http://{host}:{port}/{bucket}?list-type=2&prefix={folder}/") as answer:
            found = re.findall(r"<Key>(.*?)</Key>", answer.read().decode())
        return [name.removeprefix(f"{folder}/") for name in found]

    def run(self, *arguments: str, cwd: Path, timeout: float = 300, command: str = "trainers.main") -> Done:
        """Runs a command in a fork whose variables point to this server."""
        before = {"module": "tests.storage_server", "arguments": self.variables}
        return fork_server().run(*arguments, cwd=cwd, timeout=timeout, command=command, before=before)

    def close(self) -> None:
        """Stops both servers."""
        self._closed.set()
        self._proxy.shutdown()
        self._proxy.server_close()
        self._moto.stop()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server, moto = self, self._moto.get_host_and_port()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                with contextlib.suppress(ConnectionError):  # of a client that is gone, or of a server that closes
                    self._answer()

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                fault = server.fault(self.command, self.path.partition("?")[0])
                body = self.rfile.read(length // 2 if fault == "cut" else length)
                if fault in ("cut", "silent"):
                    if fault == "silent":
                        server._closed.wait()
                    self.close_connection = True
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if fault and fault != "half":
                    status, text = ANSWERS[fault]
                    self.send(status, {"Content-Type": "application/xml"}, text.encode())
                    return
                server.requests.append((self.command, self.path.partition("?")[0]))
                behind = http.client.HTTPConnection(*moto)
                behind.request(self.command, self.path, body, dict(self.headers.items()))
                found = behind.getresponse()
                self.send(found.status, dict(found.getheaders()), found.read(), half=fault == "half")
                behind.close()

            def send(self, status: int, headers: dict[str, str], content: bytes, *, half: bool = False) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                        self.send_header(name, value)
                length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if half else content)
                self.close_connection |= half

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Prints nothing."""

        return Handler


def begin(**variables: str) -> None:
    """Sets variables in a fork."""
    os.environ.update(variables)


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Yields a server, and closes it."""
    server = Server()
    try:
        yield server
    finally:
        server.close()
