"""Compares a checkpoint's variables with a model's. The error lists all differences in a table."""

import difflib
import glob
import itertools
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from core.checkpoint.manifest import Manifest, Variables, type_name
from core.errors import CheckpointError, did_you_mean

_MAX_ROWS = 30


def matching(paths: set[str], patterns: Sequence[str], manifest: Manifest) -> set[str]:
    matched: set[str] = set()
    for pattern in patterns:
        hits = {path for path in paths if fnmatchcase(path, pattern)}
        if not hits:
            raise CheckpointError(
                f"`partial` has the pattern {pattern!r}, which matches no variable of the model and none of checkpoint "
                f"`{manifest.path}`.{did_you_mean(pattern, paths)} Correct it, or remove it."
            )
        matched |= hits
    return matched


def check_fit(manifest: Manifest, live: Variables, left_out: set[str], partial: Sequence[str]) -> None:
    here = {path: type_name(variable.dtype.name, variable.shape) for path, variable in live.items()}
    saved = {path: str(entry) for path, entry in manifest.variables.items() if path not in left_out}
    missing = [path for path in here if path not in saved]
    unexpected = [path for path in saved if path not in here]
    misshapen = [path for path in here if path in saved and here[path] != saved[path]]
    rows = [("missing", path, here[path], "-") for path in missing]
    rows += [("unexpected", path, "-", saved[path]) for path in unexpected]
    rows += [("misshapen", path, here[path], saved[path]) for path in misshapen]
    if not rows:
        return
    near = nearest({path: here[path] for path in missing}, {path: saved[path] for path in unexpected})
    hint = "; ".join(f"`{old}` may now be called `{new}`" for new, old in near)
    misfits = {path for _, path, *_ in rows}
    patterns = widest_patterns(misfits, {*here, *saved} - misfits)
    rest = ", ".join(f'"{pattern}"' for pattern in [*partial, *patterns])
    raise CheckpointError(
        f"Checkpoint `{manifest.path}` doesn't fit this model:\n{table(rows, 'this model', 'checkpoint')}\n"
        + (f"{hint[0].upper()}{hint[1:]}. " if hint else "")
        + "Build the model as it was when saved, or choose another `--workdir`."
        + (
            f" To restore only what fits, in Python, name the rest: `restore(manifest, variables, partial=[{rest}])` "
            "skips it."
            if patterns != ["*"]
            else " Nothing of it fits."
        )
    )


def nearest(missing: Mapping[str, str], unexpected: Mapping[str, str], *, most: int = 3) -> list[tuple[str, str]]:
    """Pairs each missing path with the most similar unexpected path of the same type: `[(missing, unexpected)]`."""
    found = []
    for path, kind in missing.items():
        same_type = [other for other in unexpected if unexpected[other] == kind]
        found += [(path, near) for near in difflib.get_close_matches(path, same_type, n=1, cutoff=0.4)]
    return found[:most]


def widest_patterns(wanted: Collection[str], others: Collection[str]) -> list[str]:
    """Returns the widest patterns, such as `["net/*"]`, that match all `wanted` paths and none of `others`."""

    def widest(path: str) -> str:
        parents = itertools.accumulate(path.split("/")[:-1], lambda parent, part: f"{parent}{part}/", initial="")
        clear = (parent for parent in parents if not any(other.startswith(parent) for other in others))
        parent = next(clear, None)
        return glob.escape(path) if parent is None else f"{glob.escape(parent)}*"

    return list(dict.fromkeys(map(widest, sorted(wanted))))


def table(rows: Sequence[tuple[str, str, str, str]], here: str, there: str) -> str:
    """Formats rows `(remark, path, type here, type there)` as a table; `here` and `there` are column headings."""
    shown = [("", "variable", here, there), *rows[:_MAX_ROWS]]
    widths = [max(len(row[column]) for row in shown) for column in range(4)]
    lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shown]
    more = [f"  ... and {len(rows) - _MAX_ROWS} more"] if len(rows) > _MAX_ROWS else []
    return "\n".join(line.rstrip() for line in lines + more)
