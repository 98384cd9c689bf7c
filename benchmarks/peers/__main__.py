"""Compares training speed with peers: `python -m benchmarks.peers [--prepare] [--works=mlp,conv] [--rounds=4]`

Each peer is a program as its own experts would write it (`benchmarks/peers/programs`), in a separate environment that
`--prepare` makes. All start from the same weights and read the same batches; a row with a different loss is void.
Prints tables of steps a second, ratios and targets. Results are kept as JSON after every process, so an interrupted run
keeps its measurements. `--write` updates the tables of benchmarks/notes/performance.md.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from rich.console import Console
from rich.table import Table

from benchmarks import pages
from benchmarks.environments import prepare
from benchmarks.machine import load, machine
from benchmarks.peers import kept
from benchmarks.peers.roster import PEERS, TARGETS
from benchmarks.peers.rounds import interleaved
from benchmarks.peers.table import Row, peers_table, rows_of, targets_table
from benchmarks.peers.works import WORKS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and keeps; returns 1 if a row is void."""
    flags = parse(arguments)
    if flags.prepare:
        for environment in {PEERS[name].environment for name in flags.peers} - {None}:
            prepare(str(environment))
    results = kept.read(flags.json)
    try:
        for name in flags.works if flags.rounds else ():
            measure(name, flags, results)
    except KeyboardInterrupt:
        print("interrupted; results so far:", flush=True)
    shown = [name for name in flags.works if name in results]
    for name in shown:
        show(name, results[name])
    if flags.write:
        pages.write(tables(results))
    return int(any(row.wrong.startswith("void") for name in shown for row in rows(name, results[name]).values()))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the flags; `--peers=jax` stands for all of JAX's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--prepare", action="store_true", help="first make the environments that aren't there")
    parser.add_argument("--works", default=",".join(WORKS), help="of %(default)s (default: all)")
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="of %(default)s (default: all), or how they begin: jax"
    )
    parser.add_argument("--rounds", type=int, default=4, help="0 shows what is kept (default: 4)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a process's timed steps (default: 2)")
    parser.add_argument("--json", type=Path, default=kept.FILE, help="where results are kept (default: build/peers)")
    parser.add_argument("--write", action="store_true", help="update the tables in benchmarks/notes/performance.md")
    flags = parser.parse_args(arguments)
    flags.works = chosen(parser, "--works", flags.works, list(WORKS))
    flags.peers = chosen(parser, "--peers", flags.peers, list(PEERS))
    return flags


def chosen(parser: argparse.ArgumentParser, flag: str, given: str, known: Sequence[str]) -> list[str]:
    """Returns those of `known` that are named, in full or up to a dash; an unknown name ends the command."""
    words = [word for word in given.split(",") if word]
    for word in words:
        if not any(_is_meant(name, word) for name in known):
            parser.error(f"`{flag}` names `{word}`; there are {', '.join(known)}.")
    return [name for name in known if any(_is_meant(name, word) for word in words)]


def _is_meant(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}-")


def measure(name: str, flags: argparse.Namespace, results: dict[str, Any]) -> None:
    """Writes the work's folder, and runs all peers on it."""
    from benchmarks.peers.laid_out import lay_out  # which imports TensorFlow

    peers = [peer for peer in flags.peers if name in PEERS[peer].works]
    own = {"machine": machine(), "rounds": flags.rounds, "found": of_others(results.get(name), peers)}

    def say(line: str) -> None:
        own["machine"]["highest_load"] = max(own["machine"]["highest_load"], load())
        print(f"{name}, {line}", flush=True)
        kept.write(flags.json, {**results, name: own})

    with tempfile.TemporaryDirectory() as scratch:
        lay_out(name, Path(scratch))
        results[name] = own
        interleaved(peers, Path(scratch), rounds=flags.rounds, seconds=flags.seconds, found=own["found"], say=say)


def of_others(before: dict[str, Any] | None, peers: Sequence[str]) -> dict[str, Any]:
    """Returns earlier results of peers that don't run now, if they were measured on this kind of machine."""
    here = machine()
    if before is None or any(before["machine"][key] != here[key] for key in ("processor", "cores", "tensorflow")):
        return {}
    return {peer: seen for peer, seen in before["found"].items() if peer in PEERS and peer not in peers}


def show(name: str, result: dict[str, Any]) -> None:
    """Prints the tables of a work."""
    found, console = rows(name, result), Console(width=140)
    for title, (head, cells) in (
        (f"{WORKS[name].what}; {where(result)}", peers_table(found, first_step=not WORKS[name].check)),
        ("to be reached", targets_table(found, TARGETS[name])),
    ):
        table = Table(*head, title=title)
        for row in cells:
            table.add_row(*row)
        console.print(table)


def rows(name: str, result: dict[str, Any]) -> dict[str, Row]:
    """Returns the rows of a work."""
    found = {peer: result["found"][peer] for peer in PEERS if peer in result["found"]}
    return rows_of(found, WORKS[name].tolerance)


def where(result: dict[str, Any]) -> str:
    """Names the machine, and the load from other processes."""
    about = result["machine"]
    others = max((each.get("others", 0.0) for seen in result["found"].values() for each in seen), default=0.0)
    return (
        f"{about['cores']} cores of {about['processor']}, TensorFlow {about['tensorflow']}, "
        f"rounds: {result['rounds']}, others took at most {others:.0%}"
    )


def tables(results: dict[str, Any]) -> dict[str, str]:
    """Returns the tables of pages by name."""
    texts = {}
    for name, result in results.items():
        found = rows(name, result)
        texts[f"peers, {name}"] = f"{WORKS[name].what}, on {where(result)}:\n\n" + pages.table(
            *peers_table(found, first_step=not WORKS[name].check)
        )
        texts[f"targets, {name}"] = pages.table(*targets_table(found, TARGETS[name]))
    return texts


if __name__ == "__main__":
    sys.exit(main())
