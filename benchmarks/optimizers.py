"""Time per update of a model of 50 variables and 10 million parameters: `python -m benchmarks.optimizers [--only=adam]`

If TensorFlow has a fused kernel for the optimizer, the peer is a bare loop over that kernel, and the claim is at most
1.1 times its time. The other optimizers are compared with themselves compiled by XLA, to see where that pays.
Optimizers with narrow slots are compared with themselves with float32 slots, both compiled or neither.
"""

import argparse
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks.pairs import interleaved, ratio
from core import optimizers
from core.optimizers import Optimizer, Transform
from core.random import Rng

LAYERS, WIDTH = 25, 632  # 25 matrices of 632 by 632 and 25 biases: 10.0 million numbers

Update = Callable[[], None]
Tensors = dict[str, tf.Tensor]
Kernel = Callable[[dict[str, Any], tf.Tensor], None]  # (handles and gradient of one variable, t) -> writes it

ADAM = {"lr": 1e-3, "beta1": 0.9, "epsilon": 1e-8, "beta2": 0.999}
RMSPROP = {"lr": 1e-3, "rho": 0.9, "momentum": 0.9, "epsilon": 1e-8}


def _with_powers(kernel: Callable[..., None], *betas: float) -> Kernel:
    def call(arguments: dict[str, Any], t: tf.Tensor) -> None:
        powers = {f"beta{i}_power": tf.pow(beta, t) for i, beta in enumerate(betas, 1)}
        kernel(**arguments, **powers, **ADAM)

    return call


def _descent(arguments: dict[str, Any], t: tf.Tensor) -> None:
    tf.raw_ops.ResourceApplyGradientDescent(var=arguments["var"], alpha=0.01, delta=arguments["grad"])


def _plain(kernel: Callable[..., None], **scalars: Any) -> Kernel:
    return lambda arguments, t: kernel(**arguments, **scalars)


RAW = tf.raw_ops
# The kernel of each optimizer, and the slots that it writes.
WITH_KERNEL: dict[str, tuple[Transform, Kernel, tuple[str, ...]]] = {
    "sgd": (optimizers.sgd(0.01), _descent, ()),
    "sgd, momentum": (
        optimizers.sgd(0.01, momentum=0.9),
        _plain(RAW.ResourceApplyMomentum, lr=0.01, momentum=0.9),
        ("accum",),
    ),
    "sgd, Nesterov": (
        optimizers.sgd(0.01, momentum=0.9, nesterov=True),
        _plain(RAW.ResourceApplyMomentum, lr=0.01, momentum=0.9, use_nesterov=True),
        ("accum",),
    ),
    "adam": (optimizers.adam(1e-3), _with_powers(RAW.ResourceApplyAdam, 0.9, 0.999), ("m", "v")),
    "amsgrad": (
        optimizers.amsgrad(1e-3),
        _with_powers(RAW.ResourceApplyAdamWithAmsgrad, 0.9, 0.999),
        ("m", "v", "vhat"),
    ),
    "adamax": (optimizers.adamax(1e-3), _with_powers(RAW.ResourceApplyAdaMax, 0.9), ("m", "v")),
    "adagrad": (optimizers.adagrad(1e-2), _plain(RAW.ResourceApplyAdagrad, lr=1e-2), ("accum",)),
    "adadelta": (
        optimizers.adadelta(),
        _plain(RAW.ResourceApplyAdadelta, lr=1.0, rho=0.9, epsilon=1e-6),
        ("accum", "accum_update"),
    ),
    "rmsprop": (
        optimizers.rmsprop(1e-3, momentum=0.9),
        _plain(RAW.ResourceApplyRMSProp, **RMSPROP),
        ("ms", "mom"),
    ),
    "rmsprop, centred": (
        optimizers.rmsprop(1e-3, momentum=0.9, centred=True),
        _plain(RAW.ResourceApplyCenteredRMSProp, **RMSPROP),
        ("mg", "ms", "mom"),
    ),
}
WITHOUT_KERNEL: dict[str, Transform] = {
    "adamw, Adam's kernel and a decay": optimizers.adamw(1e-3),
    "nadam": optimizers.nadam(1e-3),
    "radam": optimizers.radam(1e-3),
    "adafactor": optimizers.adafactor(1e-2),
    "lamb": optimizers.lamb(1e-3),
    "lars": optimizers.lars(1e-2),
    "lion": optimizers.lion(1e-4),
    "muon": optimizers.muon(1e-2),
    "muon, NorMuon": optimizers.muon(1e-2, neuron_beta=0.95),
    "adan": optimizers.adan(1e-3),
    "adabelief": optimizers.adabelief(1e-3),
    "ademamix": optimizers.ademamix(1e-3),
    "mars, before adamw": optimizers.chain(optimizers.mars(), optimizers.adamw(1e-3)),
    "cautious, of adamw": optimizers.cautious(optimizers.adamw(1e-3)),
    "schedule_free_adamw": optimizers.schedule_free_adamw(1e-3),
    "lookahead, of adam": optimizers.lookahead(optimizers.adam(1e-3)),
    "sam, of adam": optimizers.sam(optimizers.adam(1e-3)),
}
# XLA takes minutes over the decompositions of matrices of this size.
UNCOMPILED: dict[str, Transform] = {
    "shampoo, roots every 20 updates": optimizers.shampoo(1e-2, root_every=20),
    "soap, bases every 10 updates": optimizers.soap(1e-3),
    "psgd_kron, factors in 3 % of the updates": optimizers.psgd_kron(1e-3, factor_share=0.03),
}
NARROW: dict[str, Callable[[str], Transform]] = {
    "adam": lambda slots: optimizers.adam(1e-3, slots=slots),
    "sgd, momentum": lambda slots: optimizers.sgd(0.01, momentum=0.9, slots=slots),
    "lion": lambda slots: optimizers.lion(1e-4, slots=slots),
    "muon": lambda slots: optimizers.muon(1e-2, slots=slots),
}


def shapes() -> dict[str, list[int]]:
    return {f"{i}/{name}": [WIDTH] * rank for i in range(LAYERS) for name, rank in (("w", 2), ("b", 1))}


def model() -> dict[str, tf.Variable]:
    rng = Rng.from_seed(0)
    return {path: tf.Variable(0.02 * rng.fold(path).normal(shape)) for path, shape in shapes().items()}


def ours(transform: Transform, gradients: Tensors, *, compiled: bool = False) -> Update:
    """Applies one update with `Optimizer.apply`."""
    optimizer = Optimizer(transform, model())
    return tf.function(lambda: optimizer.apply(gradients, fused=not compiled), autograph=False, jit_compile=compiled)


def bare(kernel: Kernel, slots: tuple[str, ...], gradients: Tensors) -> Update:
    """Applies one update with the least TensorFlow: a loop over the kernel."""
    params = model()
    made = {slot: {path: tf.Variable(tf.fill(v.shape, 0.1)) for path, v in params.items()} for slot in slots}
    step = tf.Variable(0, dtype=tf.int64)

    @tf.function(autograph=False)
    def update() -> None:
        t = tf.cast(step.assign_add(1), tf.float32)
        for path, variable in params.items():
            handles = {slot: made[slot][path].handle for slot in slots}
            kernel({"var": variable.handle, "grad": gradients[path], **handles}, t)

    return update


def rows(wanted: set[str], pairs: int) -> Iterator[tuple[str, ...]]:
    """Yields (optimizer, its peer, its milliseconds, median ratio, interval)."""
    rng = Rng.from_seed(1)
    gradients = {path: rng.fold(path).normal(shape) for path, shape in shapes().items()}
    for name in [*WITH_KERNEL, *WITHOUT_KERNEL]:
        if wanted and name.split(",")[0] not in wanted:
            continue
        if name in WITH_KERNEL:
            transform, kernel, slots = WITH_KERNEL[name]
            against, peer = "its kernel", bare(kernel, slots, gradients)
        else:
            transform = WITHOUT_KERNEL[name]
            against, peer = "itself under XLA", ours(transform, gradients, compiled=True)
        seconds = interleaved({"ours": ours(transform, gradients), "peer": peer}, pairs=pairs)
        median, low, high = ratio(seconds["ours"], seconds["peer"])
        yield name, against, f"{1e3 * np.median(seconds['ours']):.1f}", f"{median:.2f}", f"{low:.2f} to {high:.2f}"
    for (name, make), slots, compiled in itertools.product(NARROW.items(), ("bfloat16", "int8"), (False, True)):
        if wanted and f"{name.split(',')[0]}_{slots}" not in wanted:
            continue
        sides = {side: ours(make(side), gradients, compiled=compiled) for side in (slots, "float32")}
        seconds = interleaved(sides, pairs=pairs)
        median, low, high = ratio(seconds[slots], seconds["float32"])
        against = "float32 slots, both under XLA" if compiled else "float32 slots"
        milliseconds = f"{1e3 * np.median(seconds[slots]):.1f}"
        yield f"{name}, {slots} slots", against, milliseconds, f"{median:.2f}", f"{low:.2f} to {high:.2f}"
    for name, transform in UNCOMPILED.items():
        if not wanted or name.split(",")[0] in wanted:
            seconds = interleaved({"ours": ours(transform, gradients)}, pairs=5)
            yield name, "", f"{1e3 * np.median(seconds['ours']):.1f}", "", ""


def main() -> None:
    """Prints one row per optimizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="optimizers, separated by commas, such as adam,lion_int8")
    parser.add_argument("--pairs", type=int, default=25, help="interleaved pairs (default: 25)")
    flags = parser.parse_args()
    table = Table("rule", "against", "ms", "ratio", "95 % interval", title="An update of 50 variables, 10 M parameters")
    for row in rows(set(filter(None, flags.only.split(","))), flags.pairs):
        print(*row, sep="  ", flush=True)
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
