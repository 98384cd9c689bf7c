"""Reads the events of TensorFlow's profiler, and divides the time among kinds of work."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from benchmarks.profile.kinds import kind_of

STARTING, CALL, INPUT = "starting operations", "call from Python", "wait for input"
CHUNK, WAIT = "a chunk", "a wait"  # marks on Python's thread, among the operations that it starts
_BUSY = ("ExecutorState::", "ThunkExecutor::", "CpuExecutable::")  # around the operations that they start
_NO_WORK = ("ThreadpoolListener::", "Memory", "SlinkyThreadPool::", "Kernel", "EndToEnd", "BlockUntilReady")


class Event(NamedTuple):
    """An interval of a thread's work, in picoseconds."""

    begin: int
    end: int
    name: str


def traced(run: Callable[[], object]) -> XSpace:
    """Returns the events of `run`, down to the smallest operations."""
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        run()
        tf.profiler.experimental.stop()
        (path,) = Path(folder).glob("plugins/profile/*/*.xplane.pb")
        return XSpace.FromString(path.read_bytes())


class Shares(NamedTuple):
    """Time of each kind in a profile, and the number of its operations."""

    picoseconds: Counter[str]
    counts: Counter[str]


def shares(space: XSpace) -> Shares:
    """Divides the time of a profile's chunks, and of the waits for input between them, among kinds of work.

    Threads that work at the same moment share it. A moment without work counts as starting operations, or as the call
    before the first and after the last operation of a chunk.
    """
    threads = [list(_events(plane, line)) for plane, line in _lines(space)]
    marked = [event for events in threads for event in events if event.name in (CHUNK, WAIT)]
    found, counts = Counter[str](), Counter[str]()
    pieces = sorted(piece for events in threads for piece in _pieces(events, counts))
    for begin, end, name in sorted(marked):
        if name == WAIT:
            found[INPUT] += end - begin
            continue
        inside = [(max(a, begin), min(b, end), kind) for a, b, kind in pieces if a < end and b > begin]
        first = min((a for a, _, _ in inside), default=end)
        last = max((b for _, b, _ in inside), default=end)
        found[CALL] += (first - begin) + (end - last)
        found.update(_divided(inside, first, last))
    return Shares(found, counts)


def _lines(space: XSpace) -> Iterator[tuple[Any, Any]]:
    """Yields the events of each thread, without those that make input in parallel."""
    for plane in space.planes:
        if plane.name.startswith("/host:CPU"):
            yield from ((plane, line) for line in plane.lines if not line.name.startswith("tf_data"))


def _events(plane: Any, line: Any) -> Iterator[Event]:
    for event in line.events:
        if event.duration_ps:
            begin = 1000 * line.timestamp_ns + event.offset_ps
            yield Event(begin, begin + event.duration_ps, plane.event_metadata[event.metadata_id].name)


def _pieces(events: Sequence[Event], counts: Counter[str]) -> Iterator[tuple[int, int, str]]:
    """Yields the events of one thread as (begin, end, kind) without overlaps: the innermost event counts."""
    stack: list[tuple[int, str | None]] = []  # (end, kind) of open events
    at = 0
    for event in sorted(events, key=lambda event: (event.begin, -event.end)):
        while stack and stack[-1][0] <= event.begin:
            yield from _piece(at, *stack[-1])
            at = max(at, stack.pop()[0])
        if stack:
            yield from _piece(at, event.begin, stack[-1][1])
        around = stack[-1][1] if stack else None
        own = _kind(event.name, around)
        kind = own or around
        if own not in (None, STARTING):
            counts[own] += 1
        stack.append((event.end, kind))
        at = event.begin
    while stack:
        yield from _piece(at, *stack[-1])
        at = max(at, stack.pop()[0])


def _piece(begin: int, end: int, kind: str | None) -> Iterator[tuple[int, int, str]]:
    if kind is not None and end > begin:
        yield begin, end, kind


def _kind(name: str, around: str | None) -> str | None:
    """Returns the kind of an event; None if it is part of the event `around` it."""
    if name.startswith(_BUSY):
        return STARTING
    if name in (CHUNK, WAIT) or name.startswith((*_NO_WORK, "Eager", "TFE_", "tf.")) or "::" in name:
        return None
    node, colon, type = name.rpartition(":")
    if colon:  # TensorFlow's; a function that is one operation contains others
        return None if "__inference" in type or " " in name else kind_of(node, type)
    program = around == STARTING and not name.startswith(("while", "call", "conditional"))
    return kind_of(name, "") if program else None


def _divided(pieces: Sequence[tuple[int, int, str]], begin: int, end: int) -> Counter[str]:
    """Divides the time from `begin` to `end` among the active kinds, moment by moment."""
    found, under_way, at = Counter[str](), Counter[str](), begin
    turns = sorted([(a, 1, kind) for a, _, kind in pieces] + [(b, -1, kind) for _, b, kind in pieces])
    for when, change, kind in turns:
        if when > at:
            # A thread that starts operations while another computes delays nothing.
            working = Counter({k: n for k, n in under_way.items() if k != STARTING and n})
            for each, n in working.items():
                found[each] += (when - at) * n // working.total()
            if not working:
                found[STARTING] += when - at
            at = when
        under_way[kind] += change
    found[STARTING] += max(end - at, 0)
    return found
