"""Starts workers as real processes, which take commands on stdin and report on stdout."""

import contextlib
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.cluster.handshake import proof

LONG = 60.0  # seconds after which a test counts as hung; none should take a fraction of it


class Worker:
    """A process and its output."""

    def __init__(self, workers: Sequence[str], index: int, **order: object):
        order = {"about": {"configuration": "abc"}, "deadline": LONG, "timeout": LONG, "token": "", **order}
        order |= {"workers": list(workers), "index": index}
        self.name = f"worker {index} ({workers[index]})"
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__).with_name("peer_process.py")), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={key: x for key, x in os.environ.items() if not key.startswith(("TF_CONFIG", "SLURM", "TAPELOOP"))},
        )
        self.events: queue.Queue[list[str]] = queue.Queue()
        self.warnings: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        self.expect("started")

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Warning: "):
                self.warnings.append(line)
            else:
                self.events.put(json.loads(line))

    def expect(self, event: str, *, within: float = LONG) -> str:
        """Asserts the word of the next message; returns its content."""
        try:
            found, text = self.events.get(timeout=within)
        except queue.Empty:
            pytest.fail(f"{self.name} said nothing for {within} s, but should say `{event}`")
        assert found == event, (self.name, found, text)
        return text

    def says_nothing(self) -> bool:
        return self.events.empty()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        return self.process.wait(LONG)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stderr):
            with contextlib.suppress(OSError):
                stream.close()


def addresses(count: int) -> list[str]:
    """Returns free addresses of this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def started_in(order: Sequence[int], start, **settings) -> list[Worker]:
    workers = addresses(len(order))
    by_index = {index: start(workers, index, **settings) for index in order}
    return [by_index[index] for index in sorted(order)]


def met(count: int, start, **settings) -> list[Worker]:
    found = started_in(range(count), start, **settings)
    for worker in found:
        worker.expect("met")
    return found


def connected(address: str) -> socket.socket:
    host, port = address.split(":")
    for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((host, int(port)), timeout=LONG)
        threading.Event().wait(0.05)
    pytest.fail(f"nobody listens at {address}")


def hear(connection: socket.socket) -> dict:
    """Returns the next message."""
    head = connection.recv(8, socket.MSG_WAITALL)
    assert head[:4] == b"TAPE", head
    return json.loads(connection.recv(struct.unpack("!I", head[4:])[0], socket.MSG_WAITALL))


def introduce(connection: socket.socket, hello: object, token: str = "") -> None:
    """Says hello to a chief, with the proof that it asks for."""
    shown = proof(token, "worker", hear(connection)["challenge"], "mine", hello)
    connection.sendall(packed({"hello": hello, "answer": "mine", "proof": shown}))


def is_shown_out(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1000):
            pass
    return True


def packed(message: object) -> bytes:
    content = json.dumps(message).encode()
    return b"TAPE" + struct.pack("!I", len(content)) + content
