"""Which weight is which variable: names changed by rules, and variables chosen by patterns."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from core.errors import ConfigurationError, did_you_mean, shown


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
