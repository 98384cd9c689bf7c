"""Runs one work with the code of one checkout, once per line on stdin, and prints its seconds.

    python benchmarks/revisions/side.py CHECKOUT WORK

It also runs revisions without this file. Trainings need only that revision's `benchmarks`; layers and optimizers are
today's cases with that revision's code.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
checkout, work = sys.argv[1:]
sys.path[0] = checkout

import numpy as np  # noqa: E402

import core  # noqa: E402, F401  # the checkout's, before `benchmarks` may come from elsewhere


def training(scratch: Path) -> tuple[Any, Callable[[], object]]:
    """Returns the traced chunk of a training, and a call that trains some chunks."""
    from benchmarks import adversarial, step_time
    from core.data import ArraySource, digits

    if work in adversarial.CASES:
        case = adversarial.CASES[work]
        trainer: Any = adversarial.make_trainer(case, scratch)
        return trainer.chunk, adversarial.ours(trainer, max(1, case.steps // case.chunk // 4))
    source, sizes = digits("train"), [64, 128, 10]
    if work == "mnist_mlp":
        random = np.random.RandomState(0)
        images, labels = random.randint(0, 256, [60000, 28, 28, 1]).astype("uint8"), random.randint(0, 10, 60000)
        source, sizes = ArraySource({"image": images, "label": labels}, name="random"), [784, 128, 10]
    trainer = step_time.make_trainer(source, sizes, scratch, compile=False)
    return trainer.chunk, step_time.ours(trainer)


def operations(function: Any) -> int:
    """Counts the operations of a traced function, with the bodies of its loops."""
    graph = function.get_concrete_function().graph.as_graph_def()
    return len(graph.node) + sum(len(body.node_def) for body in graph.library.function)


def part(kind: str, name: str) -> tuple[Any, Callable[[], object]]:
    """Returns a traced pass of a layer or update of an optimizer, and a call that waits for it."""
    sys.path[0] = str(Path(__file__).parents[2])
    from benchmarks.revisions import parts

    return parts.part(kind, name)


with tempfile.TemporaryDirectory() as folder:
    kind, _, name = work.partition("/")
    function, run = part(kind, name) if name else training(Path(folder))
    run()
    print(operations(function), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        run()
        print(time.perf_counter() - began, flush=True)
