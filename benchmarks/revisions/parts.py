"""Today's cases of layers and optimizers, to compare with another revision, even if the cases are new."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import layers, optimizers
from core.random import Rng

CASES: Mapping[str, Mapping[str, Any]] = {
    "layers": layers.CASES,
    "optimizers": {**{name: case[0] for name, case in optimizers.WITH_KERNEL.items()}, **optimizers.WITHOUT_KERNEL},
}


def part(kind: str, name: str) -> tuple[Any, Callable[[], Any]]:
    """Returns a traced pass of a layer or update of an optimizer, and a call that waits for it."""
    if kind == "layers":
        layer, ours, _, x = layers.CASES[name]
        run = layers.pass_of(ours, layer, x)
        return run, layers.waited(run)
    rng = Rng.from_seed(1)
    gradients = {path: rng.fold(path).normal(shape) for path, shape in optimizers.shapes().items()}
    update = optimizers.ours(CASES[kind][name], gradients)
    return update, update
