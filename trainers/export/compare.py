"""Compares an export with the task on real examples. The export runs in a process without this project."""

import dataclasses
import errno
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.data import Source
from core.errors import CheckpointError, NoRoomError, NotFiniteError
from core.task import Served
from trainers.export import alone
from trainers.export.program import Program

BATCHES = (1, 3, 32)  # batch sizes of the compared calls
MOST_BYTES = 1 << 30  # inputs and outputs of one function
MOST_EXAMPLES = 1000
LARGEST_DIFFERENCE = {
    "float32": 1e-5,
    "float16": 2e-3,
    "bfloat16": 1e-2,
    "int8": 1e-1,
}  # relative to an output's largest value
LEAST_SAME = {
    "float32": 1.0,
    "float16": 0.99,
    "bfloat16": 0.99,
    "int8": 0.99,
}  # share of rows with the same argmax, integer or string
LIMITS: tuple[Any, Any] = ((min, LEAST_SAME), (max, LARGEST_DIFFERENCE))
SECONDS = 1800.0  # enough for a large model on a slow machine

Array = npt.NDArray[Any]
Calls = dict[str, Any]  # arrays by `FUNCTION/NUMBER/NAME`


class Difference(NamedTuple):
    """How far an export's output differs from the task's: the relative difference, and the share of equal choices."""

    largest: float
    same: float | None = None


Found = dict[str, dict[str, Difference]]  # by function, by output


@dataclasses.dataclass(frozen=True)
class Examples:
    """Inputs for a task's exported functions, made from a source's examples, and the task's outputs for them."""

    given: Calls
    expected: Calls
    rows: Mapping[str, Sequence[int]]  # of each call, by function


def examples_of(program: Program, source: Source, *, weights: str) -> Examples:
    """Returns inputs made from examples of `source`, and the outputs of the task's functions for these inputs."""
    given: Calls = {}
    expected: Calls = {}
    rows: dict[str, list[int]] = {}
    for name, served in program.served.items():
        done = rows.setdefault(name, [])
        held = 0
        for count in _rows(len(source), choices=weights != "float32" and bool(served.scores)):
            first = sum(done)
            if done and held // first * (first + count) > MOST_BYTES:
                break  # the caches of a large language model are gigabytes
            numbers = tf.range(first, first + count, dtype=tf.int64) % len(source)
            inputs = served.inputs_of(source.gather(numbers))
            outputs = program.functions[name](**inputs)
            given |= {f"{name}/{len(done)}/{key}": _array(x) for key, x in inputs.items()}
            expected |= {f"{name}/{len(done)}/{key}": _array(x) for key, x in outputs.items()}
            held += sum(x.dtype.size * math.prod(x.shape) for x in (*inputs.values(), *outputs.values()))
            done.append(count)
    for key, value in expected.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            function, _, output = key.split("/")
            raise NotFiniteError(
                f"`{output}` of `{function}`, which `{type(program.task).__name__}` serves, isn't finite on examples "
                f"of source `{source.name}`; look for a division, logarithm or root of zero in it. Nothing was written."
            )
    return Examples(given, expected, rows)


def _array(x: tf.Tensor) -> Array:
    """Returns `x` as a NumPy array; bfloat16 is converted to float32."""
    value = (tf.cast(x, tf.float32) if x.dtype == tf.bfloat16 else x).numpy()
    return np.asarray(value, object if x.dtype == tf.string else None)  # a scalar string would become bytes


def _rows(size: int, *, choices: bool) -> list[int]:
    """Returns the batch size of each call. It is larger with `choices`, to measure the share of equal choices."""
    further = (min(size, MOST_EXAMPLES) - sum(BATCHES)) // BATCHES[-1] if choices else 0
    return [*BATCHES, *[BATCHES[-1]] * further]


def computed_alone(kind: str, model: Path, given: Calls, folder: Path) -> Calls:
    """Returns the outputs of the export `model` for `given`, computed in a new process. `folder` is for its files."""
    folder.mkdir()
    np.savez(folder / "given.npz", **given)
    arguments = [kind, str(model.resolve()), "given.npz", "made.npz"]
    try:
        done = subprocess.run(
            [sys.executable, "-I", os.path.abspath(alone.__file__), *arguments],
            cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS, check=False,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},  # GPUs round matrix products to TensorFloat-32
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CheckpointError(
            f"the export was written, but a new process didn't finish with its {kind} in {SECONDS:.0f} s: the machine "
            "is too busy, or a served function never ends. Nothing was put in place."
        ) from None
    if done.returncode == NoRoomError.exit_code:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise CheckpointError(
            f"the export was written, but a new process can't run its {kind}: {last}. Nothing was put in place."
        )
    with np.load(folder / "made.npz", allow_pickle=True) as made:
        return dict(made)


def differences(expected: Calls, made: Calls, served: Mapping[str, Served]) -> Found:
    """Returns `{function: {output: difference}}` between the task's outputs `expected` and the export's `made`."""
    outputs: dict[tuple[str, str], list[str]] = {}
    for key in expected:
        function, _, name = key.split("/")
        outputs.setdefault((function, name), []).append(key)
    found: Found = {}
    for (function, name), keys in outputs.items():
        pairs = [(expected[key], made[key]) for key in keys]
        found.setdefault(function, {})[name] = _difference(pairs, chooses=name in served[function].scores)
    return found


def check_same(
    found: Found, served: Mapping[str, Served], *, kind: str, weights: str, computed: str = "float32"
) -> None:
    """Raises an error if a difference in `found` exceeds the limit for `weights`, or for the dtype `computed`."""
    least, most = (worst(limits[weights], limits[computed]) for worst, limits in LIMITS)
    for function, outputs in found.items():
        for name, (largest, same) in outputs.items():
            if same is not None and (weights == "int8" or name not in served[function].scores):
                problem = f"agrees with the task in {same:.2%} of its choices; at least {least:.0%} are required"
                well = same >= least
            else:
                problem = f"differs from the task's by {largest:.2g} of its largest value; {most} is allowed"
                well = largest <= most
            if not well:
                raise CheckpointError(
                    f"`{name}` of `{function}`, as {kind} in {weights}, {problem}. {_remedy(weights)} Nothing was put "
                    "in place."
                )


def _remedy(weights: str) -> str:
    if weights == "float32":
        return (
            "A served function must return the same whenever it is called: look for random numbers in it, and for "
            "Python values that change between calls."
        )
    return f"These weights lose too much precision in {weights}: export them with `--weights=float32`."


def _difference(pairs: list[tuple[Array, Array]], *, chooses: bool) -> Difference:
    if pairs[0][0].dtype.kind not in "fc":  # integers and strings are choices
        return Difference(0.0, float(np.mean(np.concatenate([np.ravel(x == y) for x, y in pairs]))))
    scale = max(float(np.max(np.abs(x))) for x, _ in pairs)
    largest = max(float(np.max(np.abs(x - y))) for x, y in pairs) / (scale or 1.0)
    if not chooses:
        return Difference(largest)
    same = np.concatenate([np.ravel(np.argmax(x, -1) == np.argmax(y, -1)) for x, y in pairs])
    return Difference(largest, float(np.mean(same)))
