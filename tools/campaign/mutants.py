"""Mutated gin files, IDX, npz, images, tokens, manifests, messages: each is accepted, or refused in a sentence."""

import random
import subprocess
from collections.abc import Iterator

from tests.commands import CHECKOUT
from tools.campaign.lab import Bench, Case, Lab
from tools.campaign.mutation import mutated
from tools.campaign.readers import KINDS

PER_KIND = 200
TOGETHER = 100  # per process
ROWS = {
    "idx": "IDX",
    "idx_gz": "IDX, gzipped",
    "png": "PNG, its check sums put in order",
    "jpeg": "JPEG",
    "tokens": "a file of tokens",
    "tokenizer": "a BPE tokenizer",
    "manifest": "a checkpoint's manifest",
    "sealed_manifest": "a manifest that vouches for itself",
    "message": "messages between workers",
    "cluster": "`TF_CONFIG`",
    "insider": "a hello to a chief, from who knows the token",
    "stranger": "a hello to a chief, from who doesn't",
    "relay": "what chief and worker say when they meet",
}
WHOLE = 20  # mutated configurations for the whole command


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each kind of input, and some for the whole command."""
    count, together = (10, 10) if lab.short else (PER_KIND, TOGETHER)
    for first in range(0, count, together):
        for kind in ["relay"] if lab.short else reversed(KINDS):  # the slowest first
            yield Case(
                f"mutants of {kind} from {first}",
                lambda bench, kind=kind, first=first: read(bench, kind, first, together),
                ROWS.get(kind, kind),
            )
    for i in range(1 if lab.short else WHOLE):
        yield Case(f"mutated configuration {i + 1}", whole_command, "gin, by the whole command")


def read(bench: Bench, kind: str, first: int, count: int) -> None:
    """Runs mutants in a fork, followed by another after one that ends it."""
    number, end = first, first + count
    while number < end:
        flags = (kind, *map(str, (bench.lab.seed, number, end - number)))
        try:
            with bench.lab.server() as server:
                done = server.run(*flags, cwd=CHECKOUT, timeout=600, command="tools.campaign.mutate")
            said, how = done.stdout, f"ended the process with {done.returncode}: {done.stderr[-300:]}"
        except subprocess.TimeoutExpired as error:
            said, how = error.stdout, "hangs"
        lines = said.splitlines()
        if not lines:
            bench.fail(f"the reader can't be started: {how}")
            return
        for tried, outcome in zip(lines[::2], [*lines[1::2], how], strict=False):
            number = int(tried) + 1
            if outcome in ("read", "refused"):
                bench.count(outcome)
            else:
                bench.count("went wrong")
                bench.fail(f"mutant {tried}: {outcome} (`python -m tools.campaign.mutate {kind} {flags[1]} {tried} 1`)")


def whole_command(bench: Bench) -> None:
    """Starts the command with a mutated configuration, which it may refuse, or run."""
    folder = bench.new()
    path = folder / "watched.gin"
    path.write_bytes(mutated(path.read_bytes(), random.Random(bench.chance.random())))
    done = bench.run(folder, "--mode=summary", codes=(0, 2))
    bench.count(f"the command said {done.returncode}")
