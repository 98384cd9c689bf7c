"""A server of object storage on loopback behind a proxy that fails as a test asks: moto's S3, or an emulated Google."""

import contextlib
import http.client
import http.server
import json
import logging
import os
import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from tests.commands import Done, fork_server
from trainers.launch.commands import free_ports

EXPIRED = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
UNKNOWN = "<Error><Code>InvalidAccessKeyId</Code><Message>No such key is known.</Message></Error>"
FULL = "<Error><Code>StorageFull</Code><Message>The storage has reached its maximum.</Message></Error>"
BUSY = "<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


class Server:
    """The server. `fault` returns, for a request such as ("PUT", "/bucket/run/owner.json"), how it fails, or None.

    A request fails with one of the storage's `answers`, or is `cut` amid its body, or gets no answer (`silent`) until
    `close`, or half an answer (`half`).
    """

    def __init__(self, scheme: str = "s3") -> None:
        self.fault: Callable[[str, str], str | None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []  # that reached the storage
        self.address = f"{scheme}://bucket/runs/mine"
        self._storage = STORAGES[scheme]()
        self._closed = threading.Event()
        self._proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        self.variables = self._storage.variables(f"http://127.0.0.1:{self._proxy.server_port}")

    def names(self, place: str) -> list[str]:
        """Returns the names of the objects in `place`, a bucket and a folder."""
        bucket, _, folder = place.partition("/")
        return [name.removeprefix(f"{folder}/") for name in self._storage.names(bucket, f"{folder}/")]

    def mark(self, place: str) -> None:
        """Writes the marker of a folder, an empty object, as S3's console does."""
        self._storage.mark(place)

    def run(self, *arguments: str, cwd: Path, timeout: float = 300, command: str = "trainers.main") -> Done:
        """Runs a command in a fork whose variables point to this server."""
        before = {"module": "tests.storage_server", "arguments": self.variables}
        return fork_server().run(*arguments, cwd=cwd, timeout=timeout, command=command, before=before)

    def close(self) -> None:
        """Stops both servers."""
        self._closed.set()
        self._proxy.shutdown()
        self._proxy.server_close()
        self._storage.stop()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server, place = self, self._storage.place

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
                    status, text = server._storage.answers[fault]
                    self.send(status, {"Content-Type": "application/xml"}, text.encode())
                    return
                server.requests.append((self.command, self.path.partition("?")[0]))
                behind = http.client.HTTPConnection(*place)
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


class _S3:
    """moto's server, with a bucket."""

    answers: ClassVar = {"expired": (400, EXPIRED), "unknown": (403, UNKNOWN), "full": (507, FULL), "busy": (503, BUSY)}

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer  # not in the forks, which import this file

        self._server = ThreadedMotoServer("127.0.0.1", 0)
        self._server.start()
        self.place = self._server.get_host_and_port()
        self.stop = self._server.stop
        for name in ("moto", "werkzeug"):
            logging.getLogger(name).setLevel(logging.ERROR)  # each request is a line
        self._ask("POST", "moto-api/reset")  # its data are the process's
        self._ask("PUT", "bucket")

    def variables(self, url: str) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def names(self, bucket: str, prefix: str) -> list[str]:
        return re.findall(r"<Key>(.*?)</Key>", self._ask("GET", f"{bucket}?list-type=2&prefix={prefix}"))

    def mark(self, place: str) -> None:
        self._ask("PUT", f"{place}/")

    def _ask(self, method: str, path: str) -> str:
        host, port = self.place
        with urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/{path}", method=method)) as answer:
            return str(answer.read().decode())


class _Google:
    """An emulator of Google Cloud Storage, with a bucket."""

    answers: ClassVar = {
        "expired": (401, '{"error": {"code": 401, "message": "Invalid Credentials"}}'),
        "unknown": (403, '{"error": {"code": 403, "message": "tester does not have storage.objects.get access"}}'),
        "busy": (503, '{"error": {"code": 503, "message": "We encountered an internal error"}}'),
    }

    def __init__(self) -> None:
        from gcp_storage_emulator.server import create_server

        self.place = "127.0.0.1", free_ports(1)[0]
        logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)  # each missing object is a line
        self._server = create_server(*self.place, in_memory=True, default_bucket="bucket")
        self._server.start()
        self.stop = self._server.stop

    def variables(self, url: str) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": url}

    def names(self, bucket: str, prefix: str) -> list[str]:
        host, port = self.place
        with urllib.request.urlopen(f"http://{host}:{port}/storage/v1/b/{bucket}/o?prefix={prefix}") as answer:
            return [found["name"] for found in json.load(answer).get("items", [])]


STORAGES = {"s3": _S3, "gs": _Google}


def begin(**variables: str) -> None:
    """Sets variables in a fork."""
    os.environ.update(variables)


@contextlib.contextmanager
def serving(scheme: str) -> Iterator[Server]:
    """Yields a server for addresses with this scheme, and closes it."""
    server = Server(scheme)
    try:
        yield server
    finally:
        server.close()
