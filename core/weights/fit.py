"""Matches a task's variables with saved weights. An error lists all mismatches in a table."""

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
    """The saved name of a variable's value, and the order into which to transpose its axes (`None` to keep them)."""

    name: str
    axes: tuple[int, ...] | None


class Fit(NamedTuple):
    """The result of matching: `parts` are assigned, `kept` variables stay as initialised, `left` weights are unused."""

    parts: Mapping[str, Part]  # by the path of the variable
    kept: Sequence[str]
    left: Sequence[str]


def fitted(variables: Mapping[str, tf.Variable], weights: Weights, start: StartFrom) -> Fit:
    """Matches the variables that `start` selects with `weights`. If not all fit, it raises a `CheckpointError`."""
    here = {path: ArrayType(v.dtype.name, tuple(v.shape)) for path, v in variables.items()}
    hits = matching(start.take, here, argument="take")
    wanted = [path for path in here if any(path in found for found in hits.values())]
    names: dict[str, list[str]] = {}
    for name, path in renamed(weights.types, start.rename).items():
        names.setdefault(path, []).append(name)
    for path in wanted:
        if len(names.get(path, [])) > 1:
            raise ConfigurationError(
                f"`rename` maps {' and '.join(f'`{name}`' for name in names[path])} of {weights.place} to one "
                f"variable, `{path}`: first rename the wrong one to something else."
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


def check_types(
    here: Mapping[str, ArrayType], there: Mapping[str, ArrayType], *, network: str, place: str, advice: str
) -> None:
    """Raises a `CheckpointError` that lists all differences unless `there` has the names and types of `here`."""
    rows = [("missing", name, str(kind), "-") for name, kind in here.items() if name not in there]
    rows += [("misshapen", n, str(kind), str(there[n])) for n, kind in here.items() if there.get(n, kind) != kind]
    rows += [("unexpected", name, "-", str(kind)) for name, kind in there.items() if name not in here]
    if rows:
        listed = table(rows, network, "there")
        raise CheckpointError(f"{place} has other arrays than {network}:\n{listed}\n{advice[0].upper()}{advice[1:]}.")


def _fits(there: ArrayType, here: ArrayType) -> bool:
    return there == here or (there.dtype in NARROW and here == ArrayType("float32", there.shape))


def _turned(kind: ArrayType, axes: Sequence[int] | None) -> ArrayType:
    """Returns the type of an array after its axes are transposed. If `axes` has another length, it is unchanged."""
    if axes is None or len(axes) != len(kind.shape):
        return kind
    return ArrayType(kind.dtype, tuple(kind.shape[axis] for axis in axes))


def _axes(wanted: Mapping[str, ArrayType], transpose: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Returns `{path: axes}` for the variables that a pattern of `transpose` matches."""
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
                raise ConfigurationError(f"`transpose` names `{path}` by two patterns: let only one match it.")
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
    hint = "".join(f"Is `{old}` called `{new}` here? " for new, old in near)
    hint += _of_others({path: (here[path], there[path]) for path in misshapen}) if weights.others else ""
    fitting = {*there} - {*misshapen}
    patterns = widest_patterns(fitting, {*here} - fitting)
    return CheckpointError(
        f"{weights.place} lacks weights for this task ({len(fitting)} of {len(missing) + len(there)} "
        f"variables fit):\n{table(rows, 'this task', 'there')}\n"
        + (f"{hint.strip()} " if hint else "")
        + "Map its names to this task's with `rename`"
        + (
            f", or select variables with `take`: {shown(patterns)} fits, and the rest stays random."
            if patterns
            else "."
        )
    )


def _of_others(misshapen: Mapping[str, tuple[ArrayType, ArrayType]]) -> str:
    """Returns advice for an error about a weight file whose arrays differ in dtype or order of axes."""
    hint = ""
    for path, (here, there) in misshapen.items():
        if here.shape == there.shape:
            hint += f"Values aren't rounded: write `{path}` and all others of dtype {there.dtype} as {here.dtype}. "
            break
    for path, (here, there) in misshapen.items():
        if here.shape != there.shape and sorted(here.shape) == sorted(there.shape):
            axes = [*reversed(range(len(here.shape)))]
            hint += f"If its axes have another order there, set `transpose`, such as {{'{path}': {axes}}}. "
            break
    return hint


def renamed(names: Iterable[str], rules: Mapping[str, str]) -> dict[str, str]:
    """Returns `{name: new name}`. The `rules` are applied one after another.

    A rule without `*` replaces the beginning of a name, up to a `/` or the name's end. An empty beginning matches any
    name. A rule with one `*` on each side replaces a whole name, and keeps the part that the `*` matches.

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
                "Its keys are names (or beginnings of names) of the weights, its values names in this task: correct "
                "it, or leave it out."
            )
        found = after
    return found


def matching(patterns: Iterable[str], paths: Iterable[str], *, argument: str) -> dict[str, list[str]]:
    """Returns `{pattern: [path, ...]}`. `*` matches `/` too. A pattern without a match raises an error."""
    paths = list(paths)
    found = {pattern: [path for path in paths if fnmatchcase(path, pattern)] for pattern in patterns}
    for pattern, hits in found.items():
        if not hits:
            raise ConfigurationError(
                f"`{argument}` has the pattern {pattern!r}, which matches no variable of this task."
                f"{did_you_mean(pattern, _and_parents(paths))} `--mode=summary` lists them: correct it, or remove it."
            )
    return found


def _check(old: object, new: object) -> None:
    both = (old, new)
    stars = [text.count("*") for text in both if isinstance(text, str)]
    if len(stars) < len(both) or max(stars) > 1 or stars[0] != stars[1]:
        raise ConfigurationError(
            f"`rename` has {shown(old)}: {shown(new)}; give two names (or their beginnings), or two patterns with one "
            "`*` each, which matches the same on both sides."
        )


def _changed(name: str, old: str, new: str) -> str:
    if "*" in old:
        found = re.fullmatch(re.escape(old).replace(r"\*", "(.*)"), name, re.DOTALL)
        return new.replace("*", found[1]) if found else name
    if old and name != old and not name.startswith(f"{old}/"):
        return name
    return "/".join(filter(None, [new, name.removeprefix(old).removeprefix("/") if old else name]))


def _and_parents(paths: Sequence[str]) -> list[str]:
    """Returns `paths`, and a pattern for each folder of a path, such as `net/*` and `net/body/*` for `net/body/w`."""
    parents = {"/".join([*path.split("/")[:i], "*"]) for path in paths for i in range(1, path.count("/") + 1)}
    return sorted({*paths, *parents})
