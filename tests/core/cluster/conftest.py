"""Workers that end with the test."""

import contextlib
from collections.abc import Iterator, Sequence

import pytest
from peer_lab import Worker


@pytest.fixture
def start() -> Iterator[object]:
    """`start(workers, index, ...)` starts a worker, which ends with the test."""
    with contextlib.ExitStack() as stack:

        def started(workers: Sequence[str], index: int, **order: object) -> Worker:
            worker = Worker(workers, index, **order)
            stack.callback(worker.end)
            return worker

        yield started
