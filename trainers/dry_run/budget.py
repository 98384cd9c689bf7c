"""`Trainer.memory_budget`: chooses microbatches, then recomputation, so that a device is estimated to hold less.

The choice is written to `memory.json` in the workdir before the first step, and a resumed run keeps it.
"""

import bisect
import contextlib
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import gin
import tensorflow as tf

from core.cluster import is_chief
from core.data.pipeline import rows_of
from core.disk import write_whole
from core.distribution import Agreement
from core.errors import ConfigurationError, NoRoomError
from core.estimate import HELD
from core.layers.recompute_by_path import EVERY_OTHER, WHOLE, Patterns
from core.module import named_modules, named_variables
from core.task.checks import checked_phases
from core.tensorflow_private import flattened
from trainers.dry_run.build import DryBuild
from trainers.dry_run.memory import held_by_a_device, most
from trainers.experiment import Experiment
from trainers.options.sizes import size
from trainers.settings import Settings
from trainers.workdir import MEMORY, Workdir, json_text

Announce = Callable[[Callable[[str], object]], None]
_DAMAGED = (OSError, ValueError, LookupError, TypeError)


class Fit(NamedTuple):
    """A number of microbatches and the modules to recompute; with both, a device's memory stays within the budget."""

    microbatches: int
    recompute: Patterns
    expected: int  # bytes of a device
    line: str  # describes the choice

    def announce(self, workdir: Workdir, note: Callable[[str], object]) -> None:
        """Writes the choice to the workdir, and passes a line about it to `note`."""
        note(self.line)
        if is_chief():
            kept = {"microbatches": self.microbatches, "recompute": self.recompute, "expected_bytes": self.expected}
            write_whole({workdir.path / MEMORY: json_text(kept).encode()})


def fit_budget(experiment: Experiment, settings: Settings, workdir: Workdir) -> tuple[Settings, Announce]:
    """Chooses microbatches and recomputation for `Trainer.memory_budget`; returns the changed settings.

    A run that resumes in `workdir` keeps its choice. A new run gets the first choice that fits, and the modules of its
    task recompute accordingly. The second result is a function that records the choice once the run has begun. If
    nothing fits, a `NoRoomError` names the smallest sufficient budget.
    """
    if not experiment.assembly.backend.steps_here:
        raise ConfigurationError(
            "`Trainer.memory_budget` is for replicas and meshes, not for parameter servers: leave it out, and bind "
            "`Trainer.microbatches` or `Experiment.recompute`."
        )
    fit = _kept(experiment, workdir) or choose(DryBuild.of(experiment, settings))
    if fit.recompute != experiment.recompute:
        experiment.recomputing(fit.recompute)
    chosen = dataclasses.replace(settings, microbatches=fit.microbatches)
    return chosen, functools.partial(fit.announce, workdir)


def _kept(experiment: Experiment, workdir: Workdir) -> Fit | None:
    """Returns the recorded choice of a run that has a checkpoint. Workers read the chief's choice."""
    text = None
    if is_chief() and workdir.newest_name():
        try:
            found = json.loads((workdir.path / MEMORY).read_bytes())
            text = json.dumps([int(found["microbatches"]), found["recompute"], int(found["expected_bytes"])])
        except FileNotFoundError:
            pass
        except _DAMAGED:
            print(f"memory: `{MEMORY}` can't be read: chosen again", flush=True)
    text = Agreement(experiment.strategy).first_text(text)
    if text is None:
        return None
    microbatches, recompute, expected = json.loads(text)
    line = f"memory: {_said(microbatches, recompute)}, as `{MEMORY}` remembers (about {size(expected)} a device)"
    return Fit(microbatches, recompute, expected, line)


def choose(build: DryBuild) -> Fit:
    """Returns the first choice with which a device of `build` holds at most `Trainer.memory_budget`."""
    began, budget = time.perf_counter(), build.settings.budget
    assert budget is not None
    counts, why = _microbatches(build)
    smallest, tried = list[int](), list[str]()
    for patterns in _recomputations(build):
        needs = functools.cache(functools.partial(_need, build, patterns))
        count = _first(counts, lambda count, needs=needs: needs(count) <= budget)  # type: ignore[misc]
        expected, said = needs(count), _said(count, patterns)
        if expected <= budget:
            line = (
                f"memory: {said}{f' ({why})' if why else ''}; a device is expected to hold {size(expected)} of the "
                f"{size(budget)} (estimated in {time.perf_counter() - began:.1f} s)"
            )
            return Fit(count, patterns, expected, line)
        smallest.append(expected)
        tried.append(said)
    least = f"{-(-min(smallest) // 2**20)} MiB"
    raise NoRoomError(
        f"`Trainer.memory_budget` is {size(budget)}, but a device is expected to hold {size(min(smallest))} at least, "
        f'with {" or ".join(tried)}{f" ({why})" if why else ""}. Give `Trainer.memory_budget = "{least}"` or more, '
        "or make the batch or the model smaller."
    )


def _first(counts: Sequence[int], fits: Callable[[int], bool]) -> int:
    """Returns the first of `counts` that fits, or the last one if none does. A larger count needs less memory.

    >>> [_first([1, 2, 4, 8], lambda count: count >= least) for least in (1, 3, 9)]
    [1, 4, 8]
    """
    if fits(counts[0]):
        return counts[0]
    if not fits(counts[-1]):
        return counts[-1]
    return counts[bisect.bisect_left(counts, True, 1, len(counts) - 1, key=fits)]


def _microbatches(build: DryBuild) -> tuple[list[int], str]:
    """Lists the possible numbers of microbatches. If there is only one, it says why."""
    settings, phases = build.settings, checked_phases(build.task)
    mixing = [phase.name for phase in phases if phase.mixes_rows and phase.microbatches is None]
    if "microbatches" in gin.get_bindings(Settings, resolve_references=False) or settings.microbatches != 1:
        return [settings.microbatches], "`Trainer.microbatches` is given"
    if mixing:
        return [1], f"the batch stays whole, because phase `{mixing[0]}` mixes rows"
    own = math.lcm(*(phase.microbatches or 1 for phase in phases))
    rows, found = settings.global_batch_size, list[int]()
    for count in (n for n in range(own, rows + 1, own) if rows % n == 0):
        with contextlib.suppress(ConfigurationError):  # the devices can't share a microbatch evenly
            rows_of(rows, count, build.replicas)
            build.paper.check_rows(rows, count, what="`Trainer.global_batch_size`")
            found.append(count)
    return found or [1], ""


def _recomputations(build: DryBuild) -> Iterator[Patterns]:
    """Yields patterns of modules to recompute: those of the experiment, and if it has none, more and more modules."""
    yield build.recompute
    given = build.recompute or "recompute" in gin.get_bindings(Experiment, resolve_references=False)
    if not given and (patterns := repeated(build.task)):
        yield dict.fromkeys(patterns, EVERY_OTHER)
        yield patterns


def repeated(task: tf.Module) -> list[str]:
    """Returns patterns of the modules that may be recomputed: each list of modules of one class.

    >>> from core.random import Rng
    >>> from models import Mlp
    >>> repeated(Mlp([4, 8, 8, 2], rng=Rng.from_seed(0)))
    ['layers/*']
    """
    found = list[str]()
    paths = {id(module): path for path, module in named_modules(task).items()}
    parents = flattened(task, lambda x: isinstance(x, tf.Module), with_path=True)
    for path, parent in [((), task), *sorted(parents, key=lambda pair: len(pair[0]))]:
        for name, value in vars(parent).items():
            if not isinstance(value, list | tuple) or len(value) < 2 or name.startswith("_"):
                continue
            pattern = "/".join(map(str, (*path, name, "*")))
            alike = len({type(x) for x in value}) == 1 and all(id(x) in paths for x in value)
            within = any(f"{pattern}/".startswith(outer[:-1]) for outer in found)
            if alike and not within and all(named_variables(x) for x in value):
                found.append(pattern)
    return found


def _need(build: DryBuild, patterns: Patterns, microbatches: int) -> int:
    """Estimates the peak bytes of a device, in a step or an evaluation."""
    changed = build.changed(patterns, microbatches)
    figures = changed.figures()
    evaluating = sum(figures.standing.values()) + figures.evaluation[HELD]
    return max(most(held_by_a_device(changed, figures)), evaluating)


def _said(microbatches: int, patterns: Patterns) -> str:
    """Formats a choice.

    >>> _said(4, []), _said(1, ["net/blocks/*"])
    ('4 microbatches without recomputation', '1 microbatch and recomputation of net/blocks/*')
    """
    count = f"{microbatches} microbatch{'es' if microbatches > 1 else ''}"
    shares = patterns if isinstance(patterns, Mapping) else dict.fromkeys(patterns, WHOLE)
    again = ", ".join(path if share == WHOLE else f"{path} ({share})" for path, share in shares.items())
    return f"{count} and recomputation of {again}" if again else f"{count} without recomputation"
