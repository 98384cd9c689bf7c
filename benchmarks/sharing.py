"""Gain of `sharded=True`: `python -m benchmarks.sharing [--pairs=15]`

Times a training step on 2 replicas with each rule that shares its work, and with the same rule that doesn't. AdamW's
step on them shows what the rule itself costs. Two virtual replicas share two cores.
"""

import argparse
import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.replicas import compare, mlp
from core.data import ArraySource
from core.distribution import mirrored
from core.distribution.virtual_devices import make_virtual_cpus
from core.optimizers import adamw, muon, psgd_kron, soap

ROWS, STEPS = 256, 10  # SOAP moves its bases once in ten steps
RULES = {"muon": muon, "soap": soap, "psgd_kron": psgd_kron}


def main() -> None:
    """Prints two rows for each rule."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--pairs", type=int, default=15, help="rounds of interleaved runs (default: 15)")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="RULE", help=", ".join(RULES))
    flags = parser.parse_args()
    make_virtual_cpus(2)
    print(machine())
    random = np.random.RandomState(0)
    images = {"image": random.rand(2048, 28, 28, 1).astype("float32"), "label": random.randint(0, 10, 2048)}
    source = ArraySource(images, name="random images")
    settings = {"global_batch_size": ROWS, "chunk_steps": STEPS, "strategy": mirrored(replicas=2)}
    table = Table("rule", "peer", "ms a step", "peer's", "time of pairs", "95 % interval")
    for name in flags.rules:
        rule = RULES[name]
        shared = (f"{name}, shared", functools.partial(mlp, rule=functools.partial(rule, sharded=True)))
        for peer in (
            (f"{name}, not shared", functools.partial(mlp, rule=rule)),
            ("adamw", functools.partial(mlp, rule=adamw)),
        ):
            compare(table, flags.pairs, (*shared, source, dict(settings)), (*peer, source, dict(settings)))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
