"""Finds the layouts of variables on a mesh by patterns of their paths. It needs no TensorFlow and no devices.

>>> layouts = Layouts([("*/out/w", "model,-"), ("*/w", "...,model")], {"batch": 1, "model": 2})
>>> layouts.of("net/out/w", [8, 6]), layouts.local_shape("net/up/w", [8, 6]), layouts.of("net/scale", [8])
(('model', '-'), (8, 3), ('-',))

A layout has an entry for each dimension of a variable: a mesh axis, or "-" if the dimension isn't sharded. "..."
stands for "-" in all remaining dimensions, so that one pattern serves a matrix and its bias.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from core.arguments import listed
from core.errors import ConfigurationError, did_you_mean, shown

WHOLE = "-"
_REST = "..."


class Layouts:
    """Maps paths of variables to layouts on a mesh with the axes `sizes`, such as `{"batch": 2, "model": 4}`.

    The first pattern that matches a variable's path gives its layout. Without a match, the variable is whole on every
    device.
    """

    def __init__(self, patterns: Sequence[tuple[str, str]], sizes: Mapping[str, int], *, binding: str = "mesh.layouts"):
        self.sizes, self.binding = dict(sizes), binding
        self.patterns = [(pattern, self._axes(pattern, layout)) for pattern, layout in self._pairs(patterns)]

    def before(self, others: "Layouts") -> "Layouts":
        """Returns layouts with the patterns of `self`, followed by those of `others`."""
        joined = Layouts([], self.sizes, binding=self.binding)
        joined.patterns = [*self.patterns, *others.patterns]
        return joined

    def pattern_of(self, path: str) -> str | None:
        """Returns the first pattern that matches `path`, or None."""
        return next((pattern for pattern, _ in self.patterns if fnmatchcase(path, pattern)), None)

    def of(self, path: str, shape: Sequence[int]) -> tuple[str, ...]:
        """Returns the layout of the variable at `path`, such as `("model", "-")`."""
        for pattern, axes in self.patterns:
            if fnmatchcase(path, pattern):
                return self._fitted(pattern, axes, path, shape)
        return (WHOLE,) * len(shape)

    def local_shape(self, path: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of each device's shard of a variable of `shape`."""
        return tuple(
            size if axis == WHOLE else size // self.sizes[axis]
            for axis, size in zip(self.of(path, shape), shape, strict=True)
        )

    def check(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raises an error for unused patterns, and for an axis that doesn't divide its dimension in `shapes`."""
        self.check_used(shapes, "variable")
        self.check_divide(shapes)

    def check_used(self, paths: Collection[str], what: str) -> None:
        """Raises an error for a pattern that is the first match of no path. `what` says there what a path names."""
        first = {self.pattern_of(path) for path in paths}
        for pattern, _ in self.patterns:
            if pattern not in first:
                raise ConfigurationError(self._without_effect(pattern, list(paths), what))

    def check_divide(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raises an error if the size of an axis doesn't divide a dimension that the axis shards."""
        cut = [(axis, n, path) for path, shape in shapes.items() for axis, n in self._cut(path, shape)]
        for axis, n, path in cut:
            if n % self.sizes[axis]:
                common = math.gcd(*(other for name, other, _ in cut if name == axis))
                raise ConfigurationError(
                    f"`mesh.{axis}` is {self.sizes[axis]}, which doesn't divide the {n} of `{path}` "
                    f"{shown(list(shapes[path]))} that `{self.binding}` cuts along it: sizes that divide all that is "
                    f"cut so are {_divisors(common)}; or leave `{path}` whole, with a separate pattern before the one "
                    f"that matches: ({shown(path)}, {shown(','.join(WHOLE * len(shapes[path])))})."
                )

    def _cut(self, path: str, shape: Sequence[int]) -> list[tuple[str, int]]:
        return [(axis, n) for axis, n in zip(self.of(path, shape), shape, strict=True) if axis != WHOLE]

    def _pairs(self, patterns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        for entry in patterns:
            if not (isinstance(entry, Sequence) and len(entry) == 2 and all(isinstance(x, str) for x in entry)):
                raise ConfigurationError(
                    f"`{self.binding}` has {shown(entry)}; give pairs of a pattern of paths and a layout, such as "
                    "('*/attention/out/w', 'model,-')."
                )
        return list(patterns)

    def _axes(self, pattern: str, layout: str) -> list[str]:
        axes = [axis.strip() for axis in layout.split(",")]
        for axis in axes:
            if axis not in (*self.sizes, WHOLE, _REST):
                raise ConfigurationError(
                    f"`{self.binding}` lays out {shown(pattern)} by {shown(layout)}, but {shown(axis)} isn't an axis "
                    f"of the mesh.{did_you_mean(axis, self.sizes)} Give {listed(self.sizes)}, or `-` for a whole one, "
                    "for each dimension."
                )
        named = [axis for axis in axes if axis != WHOLE]
        if len(set(named)) < len(named):
            raise ConfigurationError(
                f"`{self.binding}` lays out {shown(pattern)} by {shown(layout)}, which names one twice; an axis cuts "
                "one dimension of a variable, and `...` stands for all that are left: name each once."
            )
        return axes

    def _fitted(self, pattern: str, axes: list[str], path: str, shape: Sequence[int]) -> tuple[str, ...]:
        rank = len(shape)
        if _REST in axes and len(axes) - 1 <= rank:
            place = axes.index(_REST)
            axes = [*axes[:place], *[WHOLE] * (rank + 1 - len(axes)), *axes[place + 1 :]]
        if len(axes) != rank or _REST in axes:
            count = f"{len(axes) - 1} dimensions or more" if _REST in axes else f"{len(axes)} dimensions"
            raise ConfigurationError(
                f"`{self.binding}` lays out {shown(pattern)} by {shown(','.join(axes))}, {count}, but "
                f"`{path}` has the {rank} of {shown(list(shape))}: give as many, or a pattern that doesn't match it."
            )
        return tuple(axes)

    def _without_effect(self, pattern: str, paths: Sequence[str], what: str) -> str:
        matched = [path for path in paths if fnmatchcase(path, pattern)]
        if matched:
            return (
                f"`{self.binding}` has {shown(pattern)}, but the patterns before it match all that it does, "
                f"{listed(matched, most=4)}: the first that matches counts. Leave it out, or move it to the front."
            )
        known = f" Paths are {listed(paths, most=8)}." if paths else ""
        near = did_you_mean(pattern, paths) or known
        return f"`{self.binding}` has {shown(pattern)}, which matches no {what}.{near} Correct it, or leave it out."


def _divisors(number: int) -> str:
    """Returns up to 12 divisors of a number as text, for an error."""
    found = [n for n in range(1, min(number, 1024) + 1) if number % n == 0]
    return listed(map(str, found), most=12, quote="")
