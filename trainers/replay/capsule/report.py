"""Formats the finding of a replay as lines of text."""

import linecache
from collections.abc import Iterator, Sequence
from pathlib import Path

import core
from core.arguments import listed
from core.module import named_modules
from trainers.replay.capsule.find import MOST_ROWS, Finding
from trainers.replay.capsule.folder import Capsule
from trainers.replay.capsule.trail import Line, Operation, variables_before
from trainers.trainer import Trainer

MOST_LINES = 4
_CORE = f"{Path(core.__file__).parent}/"


def report(finding: Finding | None, trainer: Trainer, capsule: Capsule, step: int) -> str:
    """Returns the report's text: the phase, the first bad operation, its module, the parameters and the rows."""
    if finding is None:
        return (
            f"step {step} is finite when run eagerly on one device: the cause was removed by a change of code, machine "
            "or data, or depends on rounding."
        )
    lines = [("phase", f"`{finding.phase}`"), ("not finite", listed(finding.what, most=4, quote=""))]
    if finding.origin is not None:
        lines += _of_operation(finding.origin, trainer)
    lines += [("data", f"`{key}` of the batch holds non-finite values") for key in finding.features]
    lines += _of_rows(finding, trainer, capsule, step)
    return "\n".join([f"step {step} is not finite", *(f"  {name:<11}{text}" for name, text in lines)])


def _of_operation(operation: Operation, trainer: Trainer) -> Iterator[tuple[str, str]]:
    forward = operation.gradient_of
    yield "operation", operation.name
    for line in _worth_showing([*operation.lines, *(forward.lines if forward else ())]):
        yield "", _shown(line)
    yield from (("took", text) for text in operation.took)
    yield from (("made", text) for text in operation.made)
    if operation.module:
        module = named_modules(trainer.experiment.task)[operation.module]
        yield "module", f"`{operation.module}`, a `{type(module).__name__}`"
    variables = variables_before(forward or operation)
    yield "parameter", f"{listed(variables, most=4)} went into it" if variables else "none went into it"


def _of_rows(finding: Finding, trainer: Trainer, capsule: Capsule, step: int) -> Iterator[tuple[str, str]]:
    if finding.rows is None:
        return
    examples = trainer.input.examples_of(step)
    rows = examples.shape[1]
    if not finding.rows:
        yield "row", "none alone: their sum is"
        return
    if len(finding.rows) == examples.size:
        yield "row", f"each of the {examples.size} alone"
        return
    if finding.rows == list(range(MOST_ROWS)):
        yield "row", f"each of the first {MOST_ROWS} alone, and perhaps more"
        return
    source = trainer.experiment.train_source.name
    for row in finding.rows:
        replica = row % rows * capsule.replicas // rows
        where = f", on replica {replica}" if capsule.replicas > 1 else ""
        yield "row", f"{row} of {examples.size}: example {examples.reshape(-1)[row]} of source `{source}`{where}"
    if len(finding.rows) == MOST_ROWS:
        yield "", "and perhaps more"


def _worth_showing(lines: Sequence[Line]) -> list[Line]:
    """Returns the innermost line, and the lines of its callers that aren't in the package `core`."""
    return [*lines[:1], *(line for line in lines[1:] if not line.file.startswith(_CORE))][:MOST_LINES]


def _shown(line: Line) -> str:
    path = Path(line.file)
    name = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{name}:{line.number} in `{line.function}`: {linecache.getline(line.file, line.number).strip()}"
