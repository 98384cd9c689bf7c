"""Trains one work with the code of one checkout, so many steps for each line on stdin, and says how long they took.

    python benchmarks/revisions/side.py CHECKOUT WORK

It runs at revisions that don't have this file, and asks nothing of them but their own `benchmarks`.
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

from benchmarks import adversarial, step_time  # noqa: E402
from core.data import ArraySource, digits  # noqa: E402


def trainer_and_run(scratch: Path) -> tuple[Any, Callable[[], object]]:
    """Returns the work's trainer, and a call that trains some chunks of it."""
    if work in adversarial.CASES:
        case = adversarial.CASES[work]
        trainer = adversarial.make_trainer(case, scratch)
        return trainer, adversarial.ours(trainer, max(1, case.steps // case.chunk // 4))
    source, sizes = digits("train"), [64, 128, 10]
    if work == "mnist_mlp":
        random = np.random.RandomState(0)
        images, labels = random.randint(0, 256, [60000, 28, 28, 1]).astype("uint8"), random.randint(0, 10, 60000)
        source, sizes = ArraySource({"image": images, "label": labels}, name="random"), [784, 128, 10]
    trainer = step_time.make_trainer(source, sizes, scratch, compile=False)
    return trainer, step_time.ours(trainer)


def operations(trainer: Any) -> int:
    """Counts what the traced chunk is made of, the bodies of its loops included."""
    graph = trainer.chunk.get_concrete_function().graph.as_graph_def()
    return len(graph.node) + sum(len(function.node_def) for function in graph.library.function)


with tempfile.TemporaryDirectory() as folder:
    trainer, run = trainer_and_run(Path(folder))
    run()
    print(operations(trainer), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        run()
        print(time.perf_counter() - began, flush=True)
