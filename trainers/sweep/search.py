"""The flags of a search, checked: its spaces, sampler, pruner, number of trials, metric and storage. Without Optuna."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from absl.flags import FlagValues

from core.errors import ConfigurationError, did_you_mean, shown
from trainers.runs.figures import sign
from trainers.runs.spread import is_seed
from trainers.sweep.grid import Over, points_of
from trainers.sweep.space import Space, parse_space

GRID, CMA_ES = "grid", "cmaes"
SAMPLERS = ("tpe", "random", CMA_ES, GRID)
PRUNERS = ("median", "hyperband")


@dataclasses.dataclass(frozen=True)
class Search:
    """A study: each trial takes a value from each space, and is repeated with all seeds."""

    spaces: Sequence[Space]
    seeds: Sequence[Over]  # one or none
    sampler: str
    pruner: str | None
    trials: int
    figure: str
    storage: str
    name: str  # of the study

    @property
    def sign(self) -> int:
        """Returns 1 if larger values of the metric are better, and -1 if smaller ones are."""
        return sign(self.figure)

    def examples(self) -> list[list[str]]:
        """Returns the bindings of a few points that contain the ends of each range, and each choice."""
        spaces = [*self.spaces, *self.seeds]
        count = max((len(space.examples) for space in spaces), default=1)
        return [[f"{s.name} = {s.examples[i % len(s.examples)]}" for s in spaces] for i in range(count)]


def read_search(flags: FlagValues, overs: Sequence[Over], folder: Path) -> Search | None:
    """Returns the search that the flags describe, or `None` for a plain grid. Raises a `ConfigurationError`."""
    spaces: list[Space] = [parse_space(given) for given in flags.space]
    searching = spaces or flags.storage or flags.sampler or flags.pruner or flags.trials is not None
    if not searching:
        return None
    for name, known in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        value = flags[name].value
        if value is not None and value not in known:
            kinds = ", ".join(f"`{each}`" for each in known)
            raise ConfigurationError(f"`--{name}` is {shown(value)}; give {kinds}.{did_you_mean(value, known)}")
    seeds = [over for over in overs if over.is_seed]
    lists = [over for over in overs if not over.is_seed]
    sampler = flags.sampler or ("tpe" if spaces else GRID)
    if seed := next((space for space in spaces if is_seed(space.name)), None):
        values = seed if isinstance(seed, Over) else "[0, 1, 2]"
        raise ConfigurationError(
            f"`--space` is a seed, `{seed.name} = {seed}`, and no sampler draws seeds: repeat each trial with seeds, "
            f"as `--over='seed={values}'`."
        )
    if lists and sampler != GRID:
        raise ConfigurationError(
            f"`--over` of `{lists[0].name}` is a grid's, and `{sampler}` draws from spaces: write "
            f"`--space='{lists[0].name}={lists[0]}'`."
        )
    if not spaces and sampler != GRID:
        raise ConfigurationError(
            f"`--sampler={sampler}` has no space: add one, as `--space='adamw.learning_rate=...'`."
        )
    _check_names([*lists, *spaces])
    if not flags.figure:
        raise ConfigurationError("`--figure` is missing: give the metric that the search improves, as `eval/loss`.")
    if not sign(flags.figure[0]):
        raise ConfigurationError(
            f"`--figure` is {shown(flags.figure[0])}, whose name doesn't say whether small or large values are better: "
            "give one such as `eval/loss` or `eval/accuracy` (`python -m trainers.runs --help` lists the words)."
        )
    if len(flags.figure) > 1:
        raise ConfigurationError("`--figure` is given twice, and a search improves one metric: keep one.")
    return Search(
        spaces=[*lists, *spaces],
        seeds=seeds,
        sampler=sampler,
        pruner=flags.pruner,
        trials=_trials(flags.trials, sampler, [*lists, *spaces]),
        figure=flags.figure[0],
        storage=flags.storage or f"sqlite:///{folder / 'study.db'}",
        name=folder.absolute().name,
    )


def _check_names(spaces: Sequence[Space]) -> None:
    names = [space.name for space in spaces]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigurationError(f"`{twice}` has two spaces: keep one `--space` or `--over`.")


def _trials(given: int | None, sampler: str, spaces: Sequence[Space]) -> int:
    """Returns the number of trials of the study, and checks that the sampler knows its spaces."""
    kinds = {isinstance(space, Over): space.name for space in spaces}  # the last name of either kind
    if sampler == CMA_ES and True in kinds:
        raise ConfigurationError(f"`--sampler=cmaes` draws numbers, and `{kinds[True]}` is a list: use `tpe`.")
    if sampler != GRID:
        if given is None or given < 1:
            raise ConfigurationError(
                f"`--trials` is {given}: give the number of trials of the study, as `--trials=20`."
            )
        return given
    if False in kinds:
        raise ConfigurationError(f"`--sampler=grid` needs lists, and `{kinds[False]}` is a range: give its values.")
    count = len(points_of([space for space in spaces if isinstance(space, Over)]))
    if given is not None:
        raise ConfigurationError(f"`--trials` has no effect on a grid, which has {count} points here: remove it.")
    return count
