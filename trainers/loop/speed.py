"""Speed, learning rates and memory of a run, for metric lines and for the live display at a terminal."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from core.engine import LOSS_SCALE, TrainStep
from core.estimate import operations_of
from core.optimizers import Optimizer, last_rates
from core.task.loss import GRADIENT_NORM, OVERFLOWED, Sums, means
from trainers.hooks import ChunkHook, Run

WAIT = "data"  # the section that waits for data
PAUSES = ("hook", "evaluation", "save")  # sections without training
STATISTICS = Path("/proc/self/statm")  # sizes of this process in pages; the second is resident
SECONDS = 0.2  # limit for measuring a peak, after the first product
PRODUCTS = 4  # in sequence per call, to amortise the call


class Meter:
    """Times training between metric lines; pauses, as for an evaluation, don't count."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock = clock
        self.restart()

    def restart(self) -> None:
        """Sets all counts to zero, and counts from now on."""
        self.steps, self._began, self._waited, self._paused = 0, self.clock(), 0.0, 0.0
        self._pause_began: float | None = None

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Times the section `name`: `data` is waiting, and `PAUSES` are pauses. Other sections count as training.

        Sections within a pause count as part of the pause.
        """
        began, outermost = self.clock(), self._pause_began is None
        if name in PAUSES and outermost:
            self._pause_began = began
        yield
        if name in PAUSES and outermost:
            self._pause_began = None
            self._paused += self.clock() - began
        elif name == WAIT and outermost:
            self._waited += self.clock() - began

    def figures(self, examples_per_step: int) -> dict[str, float]:
        """Returns speed and the fraction of time spent waiting, since the last `take`."""
        busy = max(self._now() - self._began - self._paused, 1e-9)
        return {
            "examples_per_second": self.steps * examples_per_step / busy,
            "step_seconds": busy / max(self.steps, 1),
            "data_wait": min(self._waited / busy, 1.0),
        }

    def add(self, steps: int) -> None:
        """Counts completed steps."""
        self.steps += steps

    def take(self, examples_per_step: int) -> dict[str, float]:
        """Returns the same metrics as `figures`, and restarts the counts."""
        figures = self.figures(examples_per_step)
        self.steps, self._began, self._waited, self._paused = 0, self._now(), 0.0, 0.0
        return figures

    def _now(self) -> float:
        """Returns the current time, or the time at which the current pause began."""
        return self.clock() if self._pause_began is None else self._pause_began


def figures_of(sums: Mapping[str, Sums]) -> dict[str, float]:
    """Returns {metric: weighted mean} of each phase's `sums`. With several phases, names are as `d/loss`.

    With two phases, adds the ratio of the second phase's gradient norm to the first's.
    """
    if len(sums) == 1:
        return means(next(iter(sums.values())))
    found = {f"{phase}/{name}": x for phase, figures in sums.items() for name, x in means(figures).items()}
    first, *others = (found[f"{phase}/{GRADIENT_NORM}"] for phase in sums)
    if len(others) == 1 and first > 0.0:  # shows whether one of two players dominates
        found[f"{GRADIENT_NORM}_ratio"] = others[0] / first
    return found


def rate_figures(
    optimizers: Mapping[str, Optimizer], *, outer: Optimizer | None = None
) -> Callable[[], dict[str, float]]:
    """Returns a function that reads learning rates. With several optimizers, names begin with the phase.

    `outer` is the optimizer between rounds of local steps. Its rate is `outer/learning_rate`.
    """
    named = {f"{phase}/" if len(optimizers) > 1 else "": optimizer for phase, optimizer in optimizers.items()}
    readers = {before: last_rates(x) for before, x in (named | ({"outer/": outer} if outer else {})).items()}

    def read() -> dict[str, float]:
        return {
            f"{before}learning_rate{group}": rate for before, last in readers.items() for group, rate in last().items()
        }

    return read


def scale_figures(train_step: TrainStep, figures: Mapping[str, float]) -> dict[str, int]:
    """Returns the loss scales of float16 updates, and from `figures` how many steps overflowed, as whole numbers."""
    found = dict[str, int]()
    for phase, loss_scale in train_step.loss_scales.items():
        before = f"{phase}/" if len(train_step.specs) > 1 else ""
        found |= {
            f"{before}{LOSS_SCALE}": int(loss_scale.scale),
            f"{before}{OVERFLOWED}": int(figures[f"{before}{OVERFLOWED}"]),
        }
    return found


class Gauge:
    """A value that is read when it is displayed."""

    def __init__(self, read: Callable[[], float]):
        self._read = read

    def __float__(self) -> float:
        return self._read()


class Gauges(ChunkHook):
    """Shows speed, utilisation and memory of the run at a terminal."""

    def __init__(self, meter: Meter, global_batch_size: int, program: Callable[[], object]):
        """`program()` returns the traced chunk of steps. It is called after tracing."""
        self._meter, self._global_batch_size, self._program = meter, global_batch_size, program
        self._gauges: Mapping[str, Gauge] | None = None

    def begin(self, run: Run) -> None:
        """Measures the devices' peak speed if the run has a terminal and this process takes steps."""
        run.telemetry.progress(run.step)
        if not run.telemetry.live:
            return
        self._gauges = {
            "examples_per_second": self._gauge("examples_per_second"),
            "data_wait": self._gauge("data_wait"),
            "memory": Gauge(memory_in_use),
        }
        graph, backend = getattr(self._program(), "graph", None), run.train_step.backend
        if graph is not None and backend.steps_here:
            share = operations_of(graph) / measured_peak(backend.strategy.extended.worker_devices)
            seconds = self._gauge("step_seconds")
            self._gauges |= {"utilisation": Gauge(lambda: share / float(seconds))}

    def after_chunk(self, run: Run) -> None:
        run.telemetry.progress(run.step, self._gauges)

    def _gauge(self, name: str) -> Gauge:
        return Gauge(lambda: self._meter.figures(self._global_batch_size)[name])


def memory_in_use() -> float:
    """Returns the bytes in use by this process: on its GPUs if it has any, else in main memory."""
    gpus = tf.config.list_logical_devices("GPU")
    if gpus:
        return float(sum(tf.config.experimental.get_memory_info(gpu.name)["current"] for gpu in gpus))
    return float(STATISTICS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measured_peak(devices: Sequence[str]) -> float:
    """Measures the peak operations per second of these devices, with large float32 matrix products.

    CPU devices of one process share its cores: they count as one.
    """
    gpus = [device for device in devices if "GPU" in device]
    size = 4096 if gpus else 1024
    with tf.device(devices[0]):
        matrix = tf.eye(size)

        def multiply(x: tf.Tensor) -> tf.Tensor:
            for _ in range(PRODUCTS):
                x = tf.matmul(x, matrix)
            return x[0, 0]

        best = best_seconds(multiply, matrix)
    return PRODUCTS * 2.0 * size**3 / best * max(len(gpus), 1)


def best_seconds(fn: Callable[..., tf.Tensor], *given: tf.Tensor, within: float = SECONDS) -> float:
    """Traces `fn`, which returns one number, and calls it for `within` seconds. Returns the shortest call's seconds."""
    traced: Any = tf.function(fn, autograph=False).get_concrete_function(*map(tf.TensorSpec.from_tensor, given))
    traced(*given).numpy()
    began, best = time.perf_counter(), float("inf")
    while (now := time.perf_counter()) - began < within:
        traced(*given).numpy()
        best = min(best, time.perf_counter() - now)
    return best
