"""`python -m tools.same_numbers --against=REVISION`: checks that this checkout trains bit for bit as that revision.

Both revisions train every shipped configuration some steps with the command, on 1 and 2 replicas (or with other
strategies), with 1 and 2 microbatches. Equal must be: the hashes of all variables, the optimizers' included; each
metric of each line; the collectives of a step; and the exit code, where a strategy refuses a configuration. Image
folders and texts are generated; the paper's CycleGAN and GPT-2 are made narrow. Each case is compared once both have
trained it.
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
FOLDERS = {"mnist_linear": "mnist", "mnist_mlp": "mnist", "cyclegan": "images", "cifar10_speed": "cifar"}
NARROW = ("unpaired_folders.size = 16", "unpaired_folders.load_size = 20", "CycleGan.image_shape = [16, 16, 3]")
CHANGES: Mapping[str, Sequence[str]] = {
    "cifar10_speed": (
        "cifar10.directory = '{folder}'",
        "AirbenchClassifier.width = 4",
        "Trainer.global_batch_size = 16",
        "warmup_stable_decay.warmup_steps = 0",
        "warmup_stable_decay.decay_steps = 1",
    ),
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
    launch: Sequence[str] = ()  # flags of `trainers.launch`, if it takes several processes


STRATEGIES: Mapping[str, Strategy] = {
    "one_device": Strategy(["one_device"]),
    "mirrored": Strategy(["mirrored"], ["mirrored.replicas = 2"], replicas=2),
    "mesh": Strategy(["mesh"]),
    "local_steps": Strategy(
        ["mirrored", "local_steps"], ["mirrored.replicas = 2", "Trainer.local_steps = {half}"], replicas=2
    ),
    # A single worker: the order of several is left to chance.
    "servers": Strategy(["parameter_server"], launch=["--workers=1", "--ps=1"]),
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
        runtime, bindings, _, launch = STRATEGIES[self.strategy]
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
            "workdir": str(root / self.folder),
            "flags": [*(f"--gin_file={name}" for name in files), *(f"--gin_param={param}" for param in params)],
            "modes": ["train", "summary"] if self.replicas > 1 else ["train"],
            "launch": launch,
        }


class Found(NamedTuple):
    """Results of one case."""

    variables: Mapping[str, str] = {}  # hashes by path
    lines: Sequence[Mapping[str, Any]] = ()  # of metrics
    collectives: Sequence[Sequence[str]] = ()
    code: int = 0  # not 0 if the command refused the case
    output: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, prints a table, and returns 1 if anything differs."""
    flags = _parse(sys.argv[1:] if arguments is None else arguments)
    cases = [Case(*case) for case in itertools.product(flags.configs, flags.strategies, MICROBATCHES)]
    with tempfile.TemporaryDirectory() as scratch, checkout_of(flags.against, Path(scratch)) as other:
        folders = Path(scratch) / "folders"
        _write_folders(folders)
        then, now = Side(other, Path(scratch) / "then"), Side(CHECKOUT, Path(scratch) / "now")
        old = {name: other / "configs" / f"{name}.gin" for name in flags.configuration_of_then}
        renamed = dict(pair.split("=", 1) for pair in flags.renamed)
        rows = {}
        try:
            for case in cases:
                for side in (then, now):
                    side.begin(case, case.order(side.root, folders, flags.steps, old.get(case.config)))
                before, after = then.end(case), now.end(case)
                rows[case] = Row(before, after, list(differences(before, after, renamed)))
                print(f"{len(rows)}/{len(cases)} {case}: {rows[case]}", flush=True)
        finally:
            then.close()
            now.close()
    _print_table(rows, flags)
    differing = [row for row in rows.values() if row.differences]
    refused = sum(row.now.code != 0 for row in rows.values() if not row.differences)
    print(
        f"{len(rows) - len(differing)} of {len(rows)} are the same as at {flags.against}"
        + (f", {refused} of them refused by both" if refused else "")
    )
    return 1 if differing else 0


class Row(NamedTuple):
    """Comparison of one case."""

    then: Found
    now: Found
    differences: Sequence[str]

    def __str__(self) -> str:
        if self.differences:
            more = f" and {len(self.differences) - 5} more" if len(self.differences) > 5 else ""
            return "; ".join(self.differences[:5]) + more
        error = next((line for line in self.now.output.splitlines() if line.startswith("error:")), "")
        return f"{self.verdict} {error}".rstrip()

    @property
    def verdict(self) -> str:
        """Returns the comparison in a word or two."""
        return "differs" if self.differences else f"both exit with {self.now.code}" if self.now.code else "the same"


class Side:
    """A process that trains cases with the code of one checkout, in workdirs below `root`."""

    def __init__(self, checkout: Path, root: Path):
        self.root, self._name = root, checkout.name
        command = [sys.executable, str(Path(__file__).with_name("trains.py")), str(checkout)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=checkout)
        assert self._process.stdin
        assert self._process.stdout
        self._orders, self._codes = self._process.stdin, self._process.stdout

    def begin(self, case: Case, order: Mapping[str, Any]) -> None:
        """Begins to train a case."""
        try:
            self._orders.write(f"{json.dumps(order)}\n")
            self._orders.flush()
        except BrokenPipeError:
            raise SystemExit(f"error: {self._name} ended before {case}.") from None

    def end(self, case: Case) -> Found:
        """Waits for the end of the case that has begun, and returns its results."""
        line = self._codes.readline()
        if not line:
            raise SystemExit(f"error: {self._name} ended in {case}.")
        for mode, code in json.loads(line).items():
            if code:
                workdir = self.root / case.folder
                output = (workdir.parent / f"{workdir.name}.{mode}.txt").read_text(errors="replace")
                return Found(code=code, output=output[-2000:])
        return _found(self.root, case)

    def close(self) -> None:
        """Ends the process, which waits for a case or trains one."""
        self._process.kill()
        self._process.wait()


def differences(then: Found, now: Found, renamed: Mapping[str, str]) -> Iterator[str]:
    """Lists the differences of two runs of one case."""
    if then.code != now.code:
        yield f"the exit code was {then.code} and is {now.code}:\n{now.output or then.output}"
        return
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


def _write_folders(folders: Path) -> None:
    """Generates what a user would download, equal for both sides."""
    from tests.test_configs import write_idx
    from tools.invariance.stand_ins import write_cifar, write_images

    for name, write in (("mnist", write_idx), ("images", write_images), ("cifar", write_cifar)):
        (folders / name).mkdir(parents=True)
        write(folders / name)


def _print_table(rows: Mapping[Case, Row], flags: argparse.Namespace) -> None:
    table = Table("configuration", "strategy x microbatches", "variables", "figures", "collectives", "verdict")
    for case, row in rows.items():
        figures = sum(len(line) - 2 for line in row.now.lines)  # step and split aren't metrics
        counts = (f"{len(row.now.variables)}", f"{figures}", f"{len(row.now.collectives)}")
        note = f", by {flags.against}'s configuration" if case.config in flags.configuration_of_then else ""
        table.add_row(case.config, f"{case.strategy} x {case.microbatches}", *counts, row.verdict + note)
    Console(width=120).print(table)


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
