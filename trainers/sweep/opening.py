"""Creates or loads the Optuna study of a search, and checks that a study in storage is the same search."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from core.errors import ConfigurationError, TapeloopError, without_password
from trainers.sweep.grid import Over
from trainers.sweep.search import GRID, Search
from trainers.sweep.space import Space
from trainers.sweep.storage import open_storage, refused

import optuna  # isort: skip  # after `storage`, whose error says how to install it
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

FORMAT = 1  # of the attribute that describes the search
ABOUT = "tapeloop"  # the name of this attribute


def open_study(search: Search, bindings: Mapping[str, str], *, allow_config_change: bool) -> optuna.Study:
    """Returns the study of a search, whose runs share `bindings`. Raises an error if the stored study is another."""
    storage = open_storage(search.storage)
    with _answering(search):
        return _open(storage, search, bindings, allow_config_change)


def stored_trials(search: Search) -> list[FrozenTrial]:
    """Returns the trials of the stored study; none if there is no study yet."""
    storage = open_storage(search.storage)
    with _answering(search):
        try:
            study = storage.get_study_id_from_name(search.name)
        except KeyError:
            return []
        return storage.get_all_trials(study, deepcopy=False)


@contextlib.contextmanager
def _answering(search: Search) -> Iterator[None]:
    """Turns an error of the storage into one that names it."""
    try:
        yield
    except TapeloopError:
        raise
    except Exception as error:  # whatever Optuna, SQLAlchemy and the database's driver raise
        raise refused(search.storage, error, "Nothing was run.") from error


def _open(
    storage: optuna.storages.BaseStorage, search: Search, bindings: Mapping[str, str], allow_config_change: bool
) -> optuna.Study:
    direction: Literal["minimize", "maximize"] = "maximize" if search.sign > 0 else "minimize"
    pruner = optuna.pruners.MedianPruner() if search.pruner == "median" else optuna.pruners.NopPruner()
    study = optuna.create_study(
        study_name=search.name,
        storage=storage,
        sampler=_sampler(search),
        pruner=pruner,  # Hyperband needs the steps of a run, and is made when one is known
        direction=direction,
        load_if_exists=True,
    )
    about = {
        "format": FORMAT,
        "direction": direction,
        "figure": search.figure,
        "spaces": {space.name: str(space) for space in search.spaces},
        "seeds": {over.name: str(over) for over in search.seeds},
        "configuration": dict(bindings),
    }
    # In this order: another process that is beginning the same search describes it before its first trial.
    trials = study.get_trials(deepcopy=False)
    before = study.user_attrs.get(ABOUT)
    if before is None and trials:
        raise _other(search, "wasn't made by this command")
    if before is not None:
        measured = any(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials)
        _check_same(search, before if measured else {**before, "figure": search.figure}, about, allow_config_change)
    if before != about:
        study.set_user_attr(ABOUT, about)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([search.figure])  # for Optuna's dashboard
    return study


def _check_same(search: Search, before: Mapping[str, Any], about: Mapping[str, Any], allow_config_change: bool) -> None:
    """Raises a `ConfigurationError` if the study in storage is another search."""
    if before.get("format") != FORMAT:
        raise _other(search, f"has format {before.get('format')}, and this version of Tapeloop knows {FORMAT}")
    for name in ("direction", "figure", "spaces", "seeds"):
        if before[name] != about[name]:
            raise _other(search, f"has the {name} {before[name]}, and this search has {about[name]}")
    old, new = before["configuration"], about["configuration"]
    changed = next((name for name in sorted({*old, *new}) if old.get(name) != new.get(name)), None)
    if changed and not allow_config_change:
        raise ConfigurationError(
            f"the study `{search.name}` was begun with `{changed} = {old.get(changed)}`, and this command has "
            f"{new.get(changed)}: give another `--workdir=DIR`. If the change alters no result, as another strategy "
            "doesn't, add `--allow_config_change` after the `--`."
        )


def _other(search: Search, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the study `{search.name}` in `{without_password(search.storage)}` {why}: give another `--workdir=DIR`, whose "
        "name is the study's, or another `--storage`."
    )


def distribution(space: Space) -> BaseDistribution:
    if isinstance(space, Over):
        return CategoricalDistribution(space.examples)  # as gin writes them
    if space.kind == "int":
        return IntDistribution(int(space.low), int(space.high))
    return FloatDistribution(space.low, space.high, log=space.kind == "log")


class _Grid(optuna.samplers.GridSampler):
    """Optuna's grid without its call of `Study.stop`, which only `Study.optimize` allows."""

    def after_trial(self, *_: Any) -> None:
        """Does nothing: the sweep counts trials."""


def _sampler(search: Search) -> optuna.samplers.BaseSampler:
    """Returns the sampler, without a seed: processes that share a study must not draw the same values."""
    if search.sampler == GRID:
        return _Grid({space.name: space.examples for space in search.spaces})
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    return samplers.get(search.sampler, optuna.samplers.CmaEsSampler)()
