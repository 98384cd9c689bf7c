"""`python -m tools.text_peer [--seeds 0 1 2] [--param='steps = 100']`: compares `text_nano` with Flax.

Tapeloop's model trains with the real command, the peer on the same batches with Optax, from its own random weights. The
means of their held-out losses must differ by no more than the seeds' spread. It takes about an hour on two cores.
"""

import argparse
import functools
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

from core.data import topics, train_chunks
from tests.commands import CHECKOUT, CONFIGS, run
from tests.models.language.flax_gpt2 import FlaxGpt2, decays
from trainers.gin_audit.audit import read

CONFIG = CONFIGS / "text_nano.gin"
CHUNK = 50  # steps of input made at a time


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains both with each seed, prints a table, and returns 1 if they differ by more than the seeds' spread."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--param", action="append", default=[], metavar="BINDING", help="a further gin binding")
    flags = parser.parse_args(arguments)
    settings = {b.name: b.value for b in read([str(CONFIG)], flags.param, search=[CHECKOUT]).bindings}
    table = Table("seed", "ours: loss", "seconds", "Flax: loss", "seconds")
    found = []
    for seed in flags.seeds:
        (ours, our_seconds), (theirs, their_seconds) = train_ours(seed, flags.param), train_flax(seed, settings)
        print(
            f"seed {seed}: ours {ours:.4f} in {our_seconds:.0f} s, Flax {theirs:.4f} in {their_seconds:.0f} s",
            flush=True,
        )
        table.add_row(str(seed), f"{ours:.4f}", f"{our_seconds:.0f}", f"{theirs:.4f}", f"{their_seconds:.0f}")
        found.append([ours, theirs])
    losses = np.array(found)
    apart, spread = abs(np.diff(losses.mean(axis=0))[0]), np.ptp(losses, axis=0).max()
    Console(width=100).print(table)
    print(f"the means differ by {apart:.4f}; seeds spread by {spread:.4f}")
    return int(apart > spread)


def train_ours(seed: int, params: Sequence[str]) -> tuple[float, float]:
    """Returns the final held-out loss, and the seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        bindings = [f"--gin_param={text}" for text in [f"Experiment.seed = {seed}", "Trainer.hooks = []", *params]]
        done = run(f"--gin_file={CONFIG}", "--workdir=run", *bindings, cwd=Path(scratch), timeout=7200)
        if done.returncode:
            raise RuntimeError(f"ended with {done.returncode}:\n{done.stderr}")
        loss = json.loads((Path(scratch) / "run" / "result.json").read_text())["evaluation"]["loss"]
    return float(loss), time.monotonic() - began


def train_flax(seed: int, settings: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the peer's final held-out loss, and the seconds."""
    began = time.monotonic()
    context, steps, rows = settings["context"], settings["steps"], settings["Trainer.global_batch_size"]
    names = ("vocabulary", "num_layers", "size", "num_heads", "dropout")
    net = FlaxGpt2(context=context, **{name: settings[f"LanguageModel.{name}"] for name in names})
    peak, warmup = settings["warmup_cosine.peak_rate"], settings["warmup_cosine.warmup_steps"]
    rate = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, decay_steps=steps)
    rule = optax.chain(
        optax.clip_by_global_norm(settings["clip_by_global_norm.max_norm"]),
        optax.adamw(rate, b2=settings["adamw.beta_2"], weight_decay=settings["adamw.weight_decay"], mask=decays),
    )
    params = net.init(jax.random.PRNGKey(seed), np.zeros([1, context], np.int32))["params"]
    state, dropout = rule.init(params), jax.random.PRNGKey(1000 + seed)

    def sums(params, tokens, document, rngs=None):
        logits = net.apply({"params": params}, tokens[:, :-1], document[:, :-1], rngs=rngs)
        weight = (document[:, 1:] == document[:, :-1]) & (document[:, 1:] >= 0)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return jnp.sum(loss * weight), jnp.sum(weight)

    def mean(*arguments):
        total, weight = sums(*arguments)
        return total / weight

    @jax.jit
    def update(params, state, tokens, document, key):
        gradient = jax.grad(mean)(params, tokens, document, {"dropout": key})
        updates, state = rule.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for i, (tokens, document) in enumerate(itertools.islice(batches(context, rows, seed), steps)):
        params, state = update(params, state, tokens, document, jax.random.fold_in(dropout, i))
    total = np.sum([jax.jit(sums)(params, *batch) for batch in held_out(context)], axis=0)
    return float(total[0] / total[1]), time.monotonic() - began


def batches(context: int, rows: int, seed: int):
    """Yields the batches of Tapeloop's run with this seed."""
    chunks = train_chunks(
        topics("train", context), global_batch_size=rows, microbatches=1, chunk_steps=CHUNK, seed=seed
    )
    for chunk in chunks.as_numpy_iterator():
        yield from zip(chunk["tokens"][:, 0], chunk["document"][:, 0], strict=True)


@functools.cache
def held_out(context: int):
    """Returns all held-out windows, a hundred at a time."""
    source = topics("test", context)
    parts = np.array_split(np.arange(len(source)), -(-len(source) // 100))
    rows = [source.gather(part) for part in parts]
    return [(row["tokens"].numpy(), row["document"].numpy()) for row in rows]


if __name__ == "__main__":
    sys.exit(main())
