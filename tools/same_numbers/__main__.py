"""`python -m tools.same_numbers --against=REVISION`: checks that this checkout trains bit for bit as that revision.

Both revisions train every shipped configuration some steps with the command, on 1 and 2 replicas (or with other
strategies), with 1 and 2 microbatches. Equal must be: the hashes of all variables, the optimizers' included; each
metric of each line; and the collectives of a step. Image folders and texts are generated; the paper's CycleGAN and
GPT-2 are made narrow.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.checkout import checkout_of
from core.errors import did_you_mean
from tests.commands import CHECKOUT, CONFIGS
from trainers.modes.resume_check import MEASURED

MICROBATCHES = (1, 2)
FOLDERS = {"mnist_linear": "mnist", "mnist_mlp": "mnist", "cyclegan": "images"}
NARROW = ("unpaired_folders.size = 16", "unpaired_folders.load_size = 20", "CycleGan.image_shape = [16, 16, 3]")
CHANGES: Mapping[str, Sequence[str]] = {
    "mnist_linear": ("mnist.directory = '{folder}'",),
    "mnist_mlp": ("mnist.directory = '{folder}'",),
    "cyclegan": (
        "directory = '{folder}'",
        *NARROW,
        "CycleGan.width = 4",
        "CycleGan.blocks = 1",
        "CycleGan.discriminator_channels = [4, 8]",
        "Trainer.global_batch_size = 4",
    ),
    "text_70b": (
        "LanguageModel.num_layers = 2",
        "LanguageModel.size = 16",
        "LanguageModel.num_heads = 2",
        "LanguageModel.num_kv_heads = 1",
        "LanguageModel.hidden = 32",
        "LanguageModel.vocabulary = 257",
        "context = 16",
        "Trainer.global_batch_size = 4",
    ),
    "text_small": (
        "LanguageModel.num_layers = 2",
        "LanguageModel.size = 16",
        "LanguageModel.num_heads = 2",
        "LanguageModel.vocabulary = 257",
        "context = 16",
        "Trainer.global_batch_size = 4",
    ),
}


class Strategy(NamedTuple):
    """A strategy that every configuration is trained with."""

    runtime: Sequence[str]  # files of `configs/runtime`
    bindings: Sequence[str] = ()
    replicas: int = 1


STRATEGIES: Mapping[str, Strategy] = {
    "one_device": Strategy(["one_device"]),
    "mirrored": Strategy(["mirrored"], ["mirrored.replicas = 2"], replicas=2),
    "mesh": Strategy(["mesh"]),
    "local_steps": Strategy(
        ["mirrored", "local_steps"], ["mirrored.replicas = 2", "Trainer.local_steps = {half}"], replicas=2
    ),
}


class Case(NamedTuple):
    """One configuration with a strategy and a number of microbatches."""

    config: str
    strategy: str
    microbatches: int

    def __str__(self) -> str:
        return f"{self.config} {self.strategy} x {self.microbatches}"

    @property
    def replicas(self) -> int:
        """Returns the number of replicas, between which there are collectives if there are several."""
        return STRATEGIES[self.strategy].replicas

    @property
    def folder(self) -> str:
        """Returns the workdir below the folder of a side."""
        return f"{self.config}/{self.strategy}x{self.microbatches}"

    def order(self, root: Path, folders: Path, steps: int, file: Path | None) -> dict[str, Any]:
        """Returns the request for `trains.py`: the flags, and the workdir below `root`."""
        runtime, bindings, _ = STRATEGIES[self.strategy]
        folder = folders / FOLDERS.get(self.config, "")
        half = max(1, steps // 2)
        params = [change.format(folder=folder) for change in CHANGES.get(self.config, ())]
        params += [f"Trainer.{name} = {steps}" for name in ("steps", "evaluate_every", "checkpoint_every")]
        params += [f"Trainer.{name} = {half}" for name in ("log_every", "chunk_steps")]
        params += [f"Trainer.microbatches = {self.microbatches}"]
        params += [binding.format(half=half) for binding in bindings]
        files = [file or f"CHECKOUT/configs/{self.config}.gin"]
        files += [f"CHECKOUT/configs/runtime/{name}.gin" for name in runtime]
        return {
            "name": str(self),
            "workdir": str(root / self.folder),
            "flags": [*(f"--gin_file={name}" for name in files), *(f"--gin_param={param}" for param in params)],
            "modes": ["train", "summary"] if self.replicas > 1 else ["train"],
        }


class Found(NamedTuple):
    """Results of one case."""

    variables: Mapping[str, str]  # hashes by path
    lines: Sequence[Mapping[str, Any]]  # of metrics
    collectives: Sequence[Sequence[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, prints a table, and returns 1 if anything differs."""
    flags = _parse(sys.argv[1:] if arguments is None else arguments)
    cases = [Case(*case) for case in itertools.product(flags.configs, flags.strategies, MICROBATCHES)]
    with tempfile.TemporaryDirectory() as scratch, checkout_of(flags.against, Path(scratch)) as other:
        folders = Path(scratch) / "folders"
        _write_folders(folders)
        orders = {}
        for side, checkout in (("then", other), ("now", CHECKOUT)):
            old = {name: other / "configs" / f"{name}.gin" for name in flags.configuration_of_then}
            root = Path(scratch) / side
            orders[checkout] = [case.order(root, folders, flags.steps, old.get(case.config)) for case in cases]
        _train(orders)
        now, then = Path(scratch) / "now", Path(scratch) / "then"
        renamed = dict(pair.split("=", 1) for pair in flags.renamed)
        rows = {case: list(differences(_found(then, case), _found(now, case), renamed)) for case in cases}
        _print_table(rows, {case: _found(now, case) for case in cases}, flags)
    differing = {case: found for case, found in rows.items() if found}
    for case, found in differing.items():
        print(f"{case}: {'; '.join(found[:5])}" + (f" and {len(found) - 5} more" if len(found) > 5 else ""))
    print(f"{len(rows) - len(differing)} of {len(rows)} are the same as at {flags.against}")
    return 1 if differing else 0


def differences(then: Found, now: Found, renamed: Mapping[str, str]) -> Iterator[str]:
    """Lists the differences of two runs of one case."""
    before = {_path_now(path, renamed): digest for path, digest in then.variables.items()}
    for path in sorted({*before, *now.variables}):
        if before.get(path) != now.variables.get(path):
            missing = "is new" if path not in before else "is gone" if path not in now.variables else "differs"
            yield f"variable `{path}` {missing}"
    if len(then.lines) != len(now.lines):
        yield f"{len(then.lines)} metric lines became {len(now.lines)}"
    for one, other in zip(then.lines, now.lines, strict=False):
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                yield f"`{name}` of step {one['step']} ({one['split']}) was {one.get(name)} and is {other.get(name)}"
    if then.collectives != now.collectives:
        yield f"the collectives were {then.collectives} and are {now.collectives}"


def _path_now(path: str, renamed: Mapping[str, str]) -> str:
    old = next((old for old in renamed if path.startswith(old)), None)
    return path if old is None else renamed[old] + path.removeprefix(old)


def _found(root: Path, case: Case) -> Found:
    workdir = root / case.folder
    [manifest] = workdir.glob("checkpoints/*/manifest.json")
    variables = {path: v["sha256"] for path, v in json.loads(manifest.read_text())["variables"].items()}
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    figures = [{name: x for name, x in line.items() if name not in MEASURED} for line in lines]
    summary = workdir.parent / f"{workdir.name}.summary.txt"
    table = summary.read_text().rpartition("between")[2] if case.replicas > 1 else ""
    rows = [[cell.strip() for cell in line.strip("│┃ \n").split("│")] for line in table.splitlines() if "│" in line]
    assert rows or case.replicas == 1, f"{case} prints no collectives: {summary.read_text()}"
    return Found(variables, figures, rows)


def _train(orders: Mapping[Path, Sequence[Mapping[str, Any]]]) -> None:
    """Runs all cases, those of each checkout in sequence and both checkouts in parallel."""
    trains = Path(__file__).with_name("trains.py")
    processes = {}
    for checkout, order in orders.items():
        command = [sys.executable, str(trains), str(checkout)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=checkout
        )
        assert process.stdin
        process.stdin.write(json.dumps(order))
        process.stdin.close()
        processes[checkout] = process
    for checkout, process in processes.items():
        assert process.stdout
        for line in process.stdout:
            name, mode, code = json.loads(line)
            print(f"{checkout.name}: {name}, {mode}: {code}", flush=True)
            if code:
                workdir = Path(next(o["workdir"] for o in orders[checkout] if o["name"] == name))
                output = (workdir.parent / f"{workdir.name}.{mode}.txt").read_text()
                for other in processes.values():
                    other.kill()
                raise SystemExit(f"error: `{name}` ended with {code} at {checkout.name}:\n{output[-2000:]}")
        if process.wait():
            assert process.stderr
            raise SystemExit(f"error: {checkout.name} can't be run:\n{process.stderr.read()[-2000:]}")


def _write_folders(folders: Path) -> None:
    """Generates what a user would download, equal for both sides."""
    from tests.test_configs import write_idx
    from tools.invariance.stand_ins import write_images

    for name, write in (("mnist", write_idx), ("images", write_images)):
        (folders / name).mkdir(parents=True)
        write(folders / name)


def _print_table(rows: Mapping[Case, Sequence[str]], found: Mapping[Case, Found], flags: argparse.Namespace) -> None:
    table = Table("configuration", "strategy x microbatches", "variables", "figures", "collectives", "verdict")
    for case, differences in rows.items():
        now = found[case]
        figures = sum(len(line) - 2 for line in now.lines)  # step and split aren't metrics
        counts = (f"{len(now.variables)}", f"{figures}", f"{len(now.collectives)}")
        table.add_row(
            case.config, f"{case.strategy} x {case.microbatches}", *counts, _verdict(case, differences, flags)
        )
    Console(width=120).print(table)


def _verdict(case: Case, differences: Sequence[str], flags: argparse.Namespace) -> str:
    note = f", by {flags.against}'s configuration" if case.config in flags.configuration_of_then else ""
    return ("differs" if differences else "the same") + note


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    known = sorted(path.stem for path in CONFIGS.glob("*.gin"))
    parser = argparse.ArgumentParser(prog="python -m tools.same_numbers", description=__doc__.partition("\n\n")[2])
    add = parser.add_argument
    add("--against", required=True, metavar="REVISION", help="the git revision to compare with")
    add("--configs", nargs="+", default=known, metavar="NAME", help=f"some of {', '.join(known)} (default: all)")
    add(
        "--strategies",
        nargs="+",
        default=["one_device", "mirrored"],
        choices=STRATEGIES,
        metavar="NAME",
        help=f"some of {', '.join(STRATEGIES)} (default: one_device mirrored); a mesh refuses some configurations",
    )
    add("--steps", type=int, default=20, help="how many to train (default: 20)")
    add("--renamed", nargs="+", default=[], metavar="OLD=NEW", help="changed prefixes of variables' paths")
    add(
        "--configuration_of_then",
        nargs="+",
        default=[],
        metavar="NAME",
        help="configurations that have been tuned since: both sides train them as the other revision describes them",
    )
    flags = parser.parse_args(arguments)
    for name in (*flags.configs, *flags.configuration_of_then):
        if name not in known:
            parser.error(f"there is no configuration {name!r} in `configs/`.{did_you_mean(name, known)}")
    if flags.steps < 2:
        parser.error(f"`--steps` is {flags.steps}: give 2 or more, so that there are two metric lines.")
    for pair in flags.renamed:
        if not re.fullmatch("[^=]+=[^=]+", pair):
            parser.error(f"`--renamed` has {pair!r}: give pairs such as task/net=task/body.")
    return flags


if __name__ == "__main__":
    sys.exit(main())
