"""Measures this machine's speed for the operations of a step."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from core.estimate import Kind, Operand
from core.machine import usable_cores
from trainers.loop.speed import best_seconds, measured_peak

MOST_SECONDS, EACH_SECONDS = 6.0, 0.015  # limits for all kinds of operations, and for one kind after its first run
ENOUGH = 0.97  # share of a step's estimated time to measure: the rest is many small operations
ABREAST, MOST_ROUNDS, AT_ONCE = 4, 100, 2e-3  # operations of one kind in a round; rounds and seconds of a call
SHORT = 1e-6  # seconds; shorter operations are measured one at a time
LARGE = 512 * 2**20  # bytes; larger operations aren't run in parallel, to save memory
CACHED = 2**20  # bytes of tensors that stay in a core's cache
BYTES, PASSES = 4 * 2**20, 50  # a tensor's size, and passes over it, to measure memory bandwidth
IN_A_PASS = 5  # tensors moved per pass: a product moves two, a sum three
WIDE, DEEP, ROUNDS = 20, 10, 50  # small operations in a loop, as in a step
CARRIED, OF_ONE = 50, 4  # loop variables, and TensorFlow's operations for each per round


class Seconds(NamedTuple):
    """The shortest time of an operation."""

    among: float  # run in parallel with others: its share of the time
    alone: float  # in a sequence


class Speeds(NamedTuple):
    """The best speeds of devices, per second."""

    peak: float  # operations of large matrix products
    bytes: float  # read and written in memory
    near: float  # the same for small tensors
    starts: float  # of small operations
    steps: float  # of small operations in sequence
    turns: float  # of TensorFlow's loop and conditional operations

    def supposed(self, kind: Kind) -> Seconds:
        """Estimates an operation's least time, from its arithmetic operations and the bytes it reads and writes."""
        passing = kind.bytes / (self.near if kind.bytes <= CACHED else self.bytes)
        busy = max(kind.operations / self.peak, passing)
        return Seconds(busy + 1 / self.starts, busy + 1 / self.steps)


def measured_speeds(devices: Sequence[str]) -> Speeds:
    """Measures these devices in about two seconds; CPU devices of one process count as one."""
    with tf.device(devices[0]):
        few = tf.zeros([64])

        def start(x: tf.Tensor) -> tf.Tensor:
            def some(y: tf.Tensor) -> list[tf.Tensor]:
                parts = [y * float(i) for i in range(1, WIDE + 1)]
                for _ in range(DEEP - 2):
                    parts = [parts[i] - parts[i - 1] for i in range(WIDE)]
                return [tf.add_n(parts)]

            return _again(ROUNDS, some, [x])[0][0]

        def step(x: tf.Tensor) -> tf.Tensor:
            def some(y: tf.Tensor) -> list[tf.Tensor]:
                for _ in range(WIDE * DEEP):
                    y = x - y
                return [y]

            return _again(ROUNDS, some, [x])[0][0]

        def turn(x: tf.Tensor) -> tf.Tensor:
            return tf.add_n(_again(ROUNDS, lambda *ys: list(ys), [x * float(i) for i in range(CARRIED)]))[0]

        moved, near = _passing(BYTES, PASSES), _passing(CACHED // IN_A_PASS, 10 * PASSES)
        starts = WIDE * (DEEP - 1) * ROUNDS / best_seconds(start, few)
        steps = WIDE * DEEP * ROUNDS / best_seconds(step, few)
        turns = OF_ONE * CARRIED * ROUNDS / best_seconds(turn, few)
    return Speeds(measured_peak(devices), moved * _count(devices), near * _count(devices), starts, steps, turns)


def measured_seconds(
    kinds: Mapping[Kind, float], chain: Mapping[Kind, float], speeds: Speeds, devices: Sequence[str]
) -> dict[Kind, Seconds]:
    """Runs each kind of operation repeatedly. Returns the times of the kinds that take most of a step.

    Stops when the rest is negligible, or after `MOST_SECONDS`.
    """
    found = dict[Kind, Seconds]()
    supposed = {kind: times * speeds.supposed(kind).among for kind, times in kinds.items()}
    left, enough, began = sum(supposed.values()), (1 - ENOUGH) * sum(supposed.values()), time.perf_counter()
    cores, count = usable_cores(), _count(devices)
    with tf.device(devices[0]):
        nothing, few = Seconds(1 / speeds.starts, 1 / speeds.steps), [Operand(tf.float32, (256,))]
        around = Seconds(*(_seconds(lambda given: -given[0], few, nothing.among, abreast) for abreast in (ABREAST, 1)))
        for kind, seconds in sorted(supposed.items(), key=lambda item: -item[1]):
            if left <= enough or time.perf_counter() - began > MOST_SECONDS:
                break
            least = speeds.supposed(kind).among
            if kind.operands is None or ABREAST * kind.bytes > LARGE:
                continue
            short, alone = least < SHORT, 0.0
            with contextlib.suppress(tf.errors.OpError):  # for example, a matrix of ones has no inverse
                if short or kind in chain:
                    alone = max(_seconds(kind.of, kind.operands, least, 1) - around.alone, 0.0)
                among = alone / cores
                if not short:
                    among = max(_seconds(kind.of, kind.operands, least, ABREAST) - around.among, 0.0)
                found[kind] = Seconds((among + nothing.among) / count, alone + nothing.alone)
                left -= seconds
    return found


def _seconds(do: Callable[..., tf.Tensor], operands: Sequence[Operand], least: float, abreast: int) -> float:
    """Returns the time of one of `abreast` parallel operations, loop overhead included. `least` is a lower bound."""
    rounds = round(min(max(AT_ONCE / (abreast * least), 1), MOST_ROUNDS))
    each = [[x.made() for x in operands] for _ in range(abreast)]

    def one(*_: tf.Tensor) -> list[tf.Tensor]:
        return [tf.cast(tf.reshape(do(given), [-1])[0], tf.float32) for given in each]

    def work() -> tf.Tensor:
        return tf.add_n(_again(rounds, one, [0.0] * abreast, overlapping=10 if abreast > 1 else 1))

    return best_seconds(work, within=EACH_SECONDS) / (abreast * rounds)


def _passing(size: int, passes: int) -> float:
    """Returns the bytes per second that are read and written, measured with tensors of `size` bytes."""
    x = tf.zeros([size // 4])
    return IN_A_PASS * size * passes / best_seconds(lambda x: _again(passes, lambda y: [y * 0.5 + x], [x])[0][0], x)


def _again(
    times: int, body: Callable[..., list[tf.Tensor]], carried: Sequence[tf.Tensor | float], overlapping: int = 10
) -> list[tf.Tensor]:
    """Runs a loop in which `overlapping` iterations may run in parallel."""
    rounds = tf.while_loop(
        lambda i, *_: i < times, lambda i, *ys: (i + 1, *body(*ys)), (0, *carried), parallel_iterations=overlapping
    )
    return list(rounds[1:])


def _count(devices: Sequence[str]) -> int:
    """Counts devices that work in parallel; CPU devices of one process share its cores."""
    return max(sum("GPU" in device for device in devices), 1)
