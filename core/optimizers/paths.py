"""Patterns of parameter paths.

A pattern is a shell wildcard that matches a whole path or the end of a path; `*` also matches slashes. `b` matches
every parameter named `b`, and `encoder/*` matches everything below an `encoder`.
"""

import fnmatch
import itertools
from collections.abc import Iterable, Sequence

from core.errors import did_you_mean


def matches(pattern: str, path: str) -> bool:
    """Says whether `pattern` matches `path`, or the end of it after a slash."""
    return fnmatch.fnmatchcase(f"/{path}", f"*/{pattern}")


def matching(patterns: Sequence[str], paths: Iterable[str], *, argument: str, what: str = "parameter") -> set[str]:
    """Returns the paths that match at least one of `patterns`; a pattern without a match raises an error."""
    paths = list(paths)
    if isinstance(patterns, str):
        raise ValueError(f"`{argument}` is the string {patterns!r}; give a list of patterns: [{patterns!r}].")
    found: set[str] = set()
    for pattern in patterns:
        hits = {path for path in paths if matches(pattern, path)}
        if not hits:
            ends = {path.split("/", i)[-1] for path in paths for i in range(path.count("/") + 1)}
            raise ValueError(
                f"`{argument}` has the pattern {pattern!r}, which matches no {what}."
                f"{did_you_mean(pattern, sorted(ends))} Correct it, or leave it out; the {what}s are: "
                f"{', '.join(sorted(paths))}."
            )
        found |= hits
    return found


def nearest_path(path: str, others: Iterable[str]) -> str:
    """Returns the path in `others` that shares the most leading parts with `path`: in the same layer, if possible."""

    def shared(other: str) -> int:
        pairs = zip(path.split("/")[:-1], other.split("/")[:-1], strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(others, key=shared)
