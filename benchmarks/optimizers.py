"""How long an update takes, for a model of 50 variables and 10 million parameters.

    python -m benchmarks.optimizers [--only=adam,sgd] [--pairs=25]

Where TensorFlow has a fused kernel for the rule, each pair times `Optimizer.apply` and a bare loop over that kernel, in
turns and in changing order; the median of the ratios is printed with its 95 % interval, and the claim is at most 1.1.
The other rules are timed as they are and compiled by XLA, which is how to run them where updates cost.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from core import optimizers
from core.optimizers import Optimizer, Transform
from core.random import Rng

LAYERS, WIDTH = 25, 632  # 25 matrices of 632 by 632 and 25 biases: 10.0 million numbers
CLAIM = 1.1

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
# What the kernel of each rule is called, and the slots it writes.
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
WITHOUT_KERNEL: dict[str, Callable[[], Transform]] = {
    "adamw (Adam's kernel and a decay)": lambda: optimizers.adamw(1e-3),
    "nadam": lambda: optimizers.nadam(1e-3),
    "radam": lambda: optimizers.radam(1e-3),
    "adafactor": lambda: optimizers.adafactor(1e-2),
    "lamb": lambda: optimizers.lamb(1e-3),
    "lars": lambda: optimizers.lars(1e-2),
    "lion": lambda: optimizers.lion(1e-4),
    "muon": lambda: optimizers.muon(1e-2),
    "schedule_free_adamw": lambda: optimizers.schedule_free_adamw(1e-3),
    "lookahead of adam": lambda: optimizers.lookahead(optimizers.adam(1e-3)),
    "sam of adam": lambda: optimizers.sam(optimizers.adam(1e-3)),
}
UNCOMPILED: dict[str, Callable[[], Transform]] = {  # XLA's eigenvectors of a matrix of this size take minutes
    "shampoo, roots every 20 updates": lambda: optimizers.shampoo(1e-2, root_every=20),
}


def shapes() -> dict[str, list[int]]:
    return {f"{i}/{name}": [WIDTH] * rank for i in range(LAYERS) for name, rank in (("w", 2), ("b", 1))}


def model() -> dict[str, tf.Variable]:
    rng = Rng.from_seed(0)
    return {path: tf.Variable(0.02 * rng.fold(path).normal(shape)) for path, shape in shapes().items()}


def ours(transform: Transform, gradients: Tensors, *, compiled: bool = False) -> Update:
    """One update by `Optimizer.apply`."""
    optimizer = Optimizer(transform, model())
    return tf.function(lambda: optimizer.apply(gradients, fused=not compiled), autograph=False, jit_compile=compiled)


def bare(kernel: Kernel, slots: tuple[str, ...], gradients: Tensors) -> Update:
    """One update by the least TensorFlow that makes it: a loop over the kernel."""
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


def seconds(update: Update) -> float:
    """Of one call."""
    start = time.perf_counter()
    update()
    return time.perf_counter() - start


def paired(one: Update, other: Update, pairs: int) -> tuple[float, float, float, float]:
    """(median ratio, its 95 % interval, median seconds of `one`); the first few pairs only warm up."""
    ratios, times = [], []
    for i in range(pairs + 3):
        first, second = (one, other) if i % 2 else (other, one)
        taken = {id(update): seconds(update) for update in (first, second)}
        if i >= 3:
            ratios.append(taken[id(one)] / taken[id(other)])
            times.append(taken[id(one)])
    ratios.sort()
    # Of n draws, the median lies between these two ranks in 95 of 100 cases (the binomial's normal approximation).
    rank = max(0, int(pairs / 2 - 0.98 * pairs**0.5))
    return statistics.median(ratios), ratios[rank], ratios[-1 - rank], statistics.median(times)


def main() -> int:
    """Prints the table; the exit code says whether the claim held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of rules, separated by commas")
    parser.add_argument("--pairs", type=int, default=25)
    given = parser.parse_args()
    wanted = set(filter(None, given.only.split(",")))
    rng = Rng.from_seed(1)
    gradients = {path: rng.fold(path).normal(shape) for path, shape in shapes().items()}

    held = True
    print(f"{'rule':35} {'ms':>8} {'ratio':>6}  95 % interval   against the kernel", flush=True)
    for name, (transform, kernel, slots) in WITH_KERNEL.items():
        if wanted and name.split(",")[0] not in wanted:
            continue
        median, low, high, taken = paired(ours(transform, gradients), bare(kernel, slots, gradients), given.pairs)
        held = held and median <= CLAIM
        print(f"{name:35} {1e3 * taken:8.1f} {median:6.2f}  {low:.2f} to {high:.2f}", flush=True)
    print(f"\n{'rule':35} {'ms':>8} {'ratio':>6}  95 % interval   compiled, against uncompiled", flush=True)
    for name, make in WITHOUT_KERNEL.items():
        if wanted and name.split()[0] not in wanted:
            continue
        plain, compiled = ours(make(), gradients), ours(make(), gradients, compiled=True)
        median, low, high, taken = paired(compiled, plain, max(5, given.pairs // 3))
        print(f"{name:35} {1e3 * taken:8.1f} {median:6.2f}  {low:.2f} to {high:.2f}", flush=True)
    for name, make in UNCOMPILED.items():
        if not wanted or name.split(",")[0] in wanted:
            update = ours(make(), gradients)
            seconds(update)  # the one that works out roots
            print(f"{name:35} {1e3 * statistics.median(seconds(update) for _ in range(5)):8.1f}", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
