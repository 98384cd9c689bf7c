"""Mutated gin files, IDX, npz, images, manifests, messages: each is taken, or refused in a sentence for users."""

import random
import subprocess
import sys
from collections.abc import Iterator

from tests.campaign import mutate
from tests.campaign.lab import Bench, Case, Lab
from tests.commands import CHECKOUT, environment

PER_KIND = 222  # of nine kinds: two thousand
WHOLE = 20  # mutated configurations that the whole command is given


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each kind of input, and one for the whole command."""
    count = 20 if lab.short else PER_KIND
    for kind in mutate.KINDS:
        yield Case(f"mutants of {kind}", lambda bench, kind=kind: read(bench, kind, count))
    for i in range(2 if lab.short else WHOLE):
        yield Case(f"mutated configuration {i + 1}", whole_command)


def read(bench: Bench, kind: str, count: int) -> None:
    """Hands mutants to the reader in a process of its own, which is started anew behind one that ends it."""
    number = 0
    while number < count:
        command = [
            sys.executable,
            "-m",
            "tests.campaign.mutate",
            kind,
            *map(str, (bench.lab.seed, number, count - number)),
        ]
        try:
            done = subprocess.run(
                command, cwd=CHECKOUT, env=environment(), capture_output=True, text=True, timeout=1200, check=False
            )
            said, end = done.stdout, f"ended the process with {done.returncode}: {done.stderr[-300:]}"
        except subprocess.TimeoutExpired as error:
            said, end = (error.stdout or b"").decode(), "hangs"
        lines = said.splitlines()
        if not lines:
            bench.fail(f"the reader can't be started: {end}")
            return
        for tried, outcome in zip(lines[::2], [*lines[1::2], end], strict=False):
            number = int(tried) + 1
            if outcome in ("read", "refused"):
                bench.count(outcome)
            else:
                bench.count("went wrong")
                bench.fail(f"mutant {tried}: {outcome} (`{' '.join(command[1:5])} {tried} 1`)")


def whole_command(bench: Bench) -> None:
    """Starts the command with a mutated configuration, which it may refuse, or run."""
    folder = bench.new()
    path = folder / "watched.gin"
    path.write_bytes(mutate.mutated(path.read_bytes(), random.Random(bench.chance.random())))
    done = bench.run(folder, "--mode=summary", codes=(0, 2))
    bench.count(f"the command said {done.returncode}")
