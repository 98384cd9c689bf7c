"""What of a task's variables is found among weights: all that was asked for, or an error with a table."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import tensorflow as tf

from core.checkpoint.fit import nearest, table, widest_patterns
from core.errors import CheckpointError, ConfigurationError, did_you_mean, shown
from core.weights.weights import ArrayType, StartFrom, Weights

NARROW = ("bfloat16", "float16")  # which float32 holds without loss


class Part(NamedTuple):
    """Says under which name a variable's value is found, and by which order of its axes."""

    name: str
    axes: tuple[int, ...] | None


class Fit(NamedTuple):
    """Says what of a task is taken, what of it stays as it is, and what of the weights nothing takes."""

    parts: Mapping[str, Part]  # by the path of the variable
    kept: Sequence[str]
    left: Sequence[str]


def fitted(variables: Mapping[str, tf.Variable], weights: Weights, start: StartFrom) -> Fit:
    """Returns what is taken; raises a `CheckpointError` with a table unless all of it is there, and of its kind."""
    here = {path: ArrayType(v.dtype.name, tuple(v.shape)) for path, v in variables.items()}
    hits = matching(start.take, here, argument="take")
    wanted = [path for path in here if any(path in found for found in hits.values())]
    names: dict[str, list[str]] = {}
    for name, path in renamed(weights.types, start.rename).items():
        names.setdefault(path, []).append(name)
    for path in wanted:
        if len(names.get(path, [])) > 1:
            raise ConfigurationError(
                f"`rename` makes {' and '.join(f'`{name}`' for name in names[path])} of {weights.place} the one "
                f"variable `{path}`: rename the one that isn't meant to something else before."
            )
    axes = _axes({path: here[path] for path in wanted}, start.transpose)
    parts = {path: Part(names[path][0], axes.get(path)) for path in wanted if path in names}
    there = {path: _turned(weights.types[part.name], part.axes) for path, part in parts.items()}
    missing = [path for path in wanted if path not in parts]
    misshapen = [path for path in parts if not _fits(there[path], here[path])]
    unused = {path: weights.types[found[0]] for path, found in names.items() if path not in parts}
    if missing or misshapen:
        raise _misfit(weights, here, there, missing, misshapen, unused)
    return Fit(parts, [path for path in here if path not in parts], [names[path][0] for path in unused])


def _fits(there: ArrayType, here: ArrayType) -> bool:
    return there == here or (there.dtype in NARROW and here == ArrayType("float32", there.shape))


def _turned(kind: ArrayType, axes: Sequence[int] | None) -> ArrayType:
    """Returns what kind an array is with its axes in another order; one that has others stays, and doesn't fit."""
    if axes is None or len(axes) != len(kind.shape):
        return kind
    return ArrayType(kind.dtype, tuple(kind.shape[axis] for axis in axes))


def _axes(wanted: Mapping[str, ArrayType], transpose: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Returns the order of the axes of each variable that `transpose` names."""
    found: dict[str, tuple[int, ...]] = {}
    for pattern, paths in matching(transpose, wanted, argument="transpose").items():
        axes = transpose[pattern]
        for path in paths:
            rank = len(wanted[path].shape)
            if not isinstance(axes, list | tuple) or sorted(map(repr, axes)) != sorted(map(repr, range(rank))):
                raise ConfigurationError(
                    f"`transpose` has {pattern!r}: {shown(axes)}, but `{path}` has {rank} axes: give each of them "
                    f"once, as {list(reversed(range(rank)))}."
                )
            if path in found:
                raise ConfigurationError(f"`transpose` names `{path}` by two patterns: let one of them match it.")
            found[path] = tuple(axes)
    return found


def _misfit(
    weights: Weights,
    here: Mapping[str, ArrayType],
    there: Mapping[str, ArrayType],
    missing: Sequence[str],
    misshapen: Sequence[str],
    unused: Mapping[str, ArrayType],
) -> CheckpointError:
    rows = [("missing", path, str(here[path]), "-") for path in missing]
    rows += [("misshapen", path, str(here[path]), str(there[path])) for path in misshapen]
    rows += [("unexpected", path, "-", str(kind)) for path, kind in unused.items()]
    near = nearest({path: str(here[path]) for path in missing}, {path: str(kind) for path, kind in unused.items()})
    hint = "".join(f"Is `{old}` what is called `{new}` here? " for new, old in near)
    hint += _of_others({path: (here[path], there[path]) for path in misshapen}) if weights.others else ""
    fitting = {*there} - {*misshapen}
    patterns = widest_patterns(fitting, {*here} - fitting)
    return CheckpointError(
        f"{weights.place} hasn't all that this run would begin with ({len(fitting)} of {len(missing) + len(there)} "
        f"variables fit):\n{table(rows, 'this task', 'there')}\n"
        + (f"{hint.strip()} " if hint else "")
        + "Say by `rename` what its names are here"
        + (
            f", or by `take` what is to be taken: {shown(patterns)} fits, and the rest stays random."
            if patterns
            else "."
        )
    )


def _of_others(misshapen: Mapping[str, tuple[ArrayType, ArrayType]]) -> str:
    """Returns what may be done about arrays of another program that are of another type, or turned."""
    hint = ""
    for path, (here, there) in misshapen.items():
        if here.shape == there.shape:
            hint += f"Nothing is rounded: write `{path}` as {here.dtype}, and all others that are {there.dtype}. "
            break
    for path, (here, there) in misshapen.items():
        if here.shape != there.shape and sorted(here.shape) == sorted(there.shape):
            axes = [*reversed(range(len(here.shape)))]
            hint += f"If axes stand in another order there, say so by `transpose`, as {{'{path}': {axes}}}. "
            break
    return hint


def renamed(names: Iterable[str], rules: Mapping[str, str]) -> dict[str, str]:
    """Returns what each name is called once all rules have changed it, one after the other.

    A rule without `*` changes the beginning of a name, up to a `/` or its end; the empty one stands before any name.
    With one `*` it changes a whole name, of which the `*` stands for any part, which it also does in what it becomes.

        >>> renamed(["backbone/0/weight", "head/weight"], {"backbone": "net/body", "*/weight": "*/w"})
        {'backbone/0/weight': 'net/body/0/w', 'head/weight': 'head/w'}
    """
    found = {name: name for name in names}
    for old, new in rules.items():
        _check(old, new)
        after = {name: _changed(now, old, new) for name, now in found.items()}
        if after == found:
            parts = {"/".join(now.split("/")[: i + 1]) for now in found.values() for i in range(now.count("/") + 1)}
            earlier = " after the rules before it" if list(rules).index(old) else ""
            raise ConfigurationError(
                f"`rename` has {old!r}: {new!r}, which changes no name{earlier}.{did_you_mean(old, sorted(parts))} "
                "Its keys are names (or beginnings of names) of what is taken, its values what they are called in "
                "this task: correct it, or leave it out."
            )
        found = after
    return found


def matching(patterns: Iterable[str], paths: Iterable[str], *, argument: str) -> dict[str, list[str]]:
    """Returns the paths that each pattern matches, where `*` matches `/` too; one that matches none is an error."""
    paths = list(paths)
    found = {pattern: [path for path in paths if fnmatchcase(path, pattern)] for pattern in patterns}
    for pattern, hits in found.items():
        if not hits:
            raise ConfigurationError(
                f"`{argument}` has the pattern {pattern!r}, which matches no variable of this task."
                f"{did_you_mean(pattern, _and_parents(paths))} `--mode=summary` lists them: correct it, or take it out."
            )
    return found


def _check(old: object, new: object) -> None:
    both = (old, new)
    stars = [text.count("*") for text in both if isinstance(text, str)]
    if len(stars) < len(both) or max(stars) > 1 or stars[0] != stars[1]:
        raise ConfigurationError(
            f"`rename` has {shown(old)}: {shown(new)}; give two names (or their beginnings), or two patterns with one "
            "`*` each, which stands for the same on both sides."
        )


def _changed(name: str, old: str, new: str) -> str:
    if "*" in old:
        found = re.fullmatch(re.escape(old).replace(r"\*", "(.*)"), name, re.DOTALL)
        return new.replace("*", found[1]) if found else name
    if old and name != old and not name.startswith(f"{old}/"):
        return name
    return "/".join(filter(None, [new, name.removeprefix(old).removeprefix("/") if old else name]))


def _and_parents(paths: Sequence[str]) -> list[str]:
    """Returns paths, and patterns of what lies below their beginnings."""
    parents = {"/".join([*path.split("/")[:i], "*"]) for path in paths for i in range(1, path.count("/") + 1)}
    return sorted({*paths, *parents})
