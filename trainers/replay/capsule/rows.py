"""Which rows of a batch aren't finite by themselves: each is given to the step function as it was, but alone."""

from collections.abc import Iterator

import tensorflow as tf

from core.engine import accumulate_gradients
from core.engine.inspect_phase import untraced
from core.engine.layout import shape_of
from core.random import Rng
from core.task import Batch, Update
from trainers.replay.capsule.trail import functions_run_eagerly, is_finite

MOST = 8  # rows that are looked for


def guilty_rows(phase: Update, values: Batch, rng: Rng) -> list[int]:
    """Returns the first rows whose loss or gradients aren't finite, of `values` [microbatches, rows, ...] in a line.

    Halves are halved where they go wrong, so that few rows among many are found by few calls. Each row keeps its
    random numbers.
    """
    microbatches, rows = shape_of(values)

    def goes_wrong(first: int, end: int) -> bool:
        m, begin = divmod(first, rows)
        part = {key: x[m : m + 1, begin : begin + end - first] for key, x in values.items()}
        mine = rng._replace(first_row=first, num_rows=end - first)
        # Tracing a function for each number of rows would take longer than calling it.
        with untraced(), functions_run_eagerly():
            made, _ = accumulate_gradients(phase.loss, phase.variables(), part, mine, name=phase.name)
        return not all(map(is_finite, tf.nest.flatten([made.sums["loss"], made.gradients], expand_composites=True)))

    def search(first: int, end: int) -> Iterator[int]:
        if not goes_wrong(first, end):
            return
        if end - first == 1:
            yield first
            return
        middle = (first + end) // 2
        yield from search(first, middle)
        yield from search(middle, end)

    found = list[int]()
    for m in range(microbatches):
        for row in search(m * rows, (m + 1) * rows):
            found.append(row)
            if len(found) == MOST:
                return found
    return found
