"""Reads and writes a network's arrays as a state dict of PyTorch: other names, and other axes.

PyTorch stores matrices as [outputs, inputs], and kernels as [outputs, inputs, height, width].
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.arguments import listed
from core.errors import CheckpointError, ConfigurationError
from core.module import Module, named_variables
from core.weights import ArrayType, Weights, check_types

AXES = {4: (2, 3, 1, 0), 2: (1, 0)}  # of their kernels and matrices, in the order of ours
BACK = {4: (3, 2, 0, 1), 2: (1, 0)}


class Entry(NamedTuple):
    """Our paths for one name of theirs, and the numbers of axes of size 1 that their array has before and after ours.

    Several paths are equal parts of their array along its first axis.
    """

    name: str
    paths: tuple[str, ...]
    ones: tuple[int, int] = (0, 0)


class Layout:
    """The names of a network's arrays in a state dict, with `/` in place of `.`.

    `names` maps theirs to ours, and `{}` stands for a number. `ones` has the axes of size 1 by their name. Both
    programs compute without the arrays whose names match `ignored`. Theirs can't compute without ours named `needs`.
    """

    def __init__(
        self,
        names: Mapping[str, Sequence[str]],
        *,
        ones: Mapping[str, tuple[int, int]] = {},
        needs: str | None = None,
        ignored: str = r"(?!)",
    ):
        entries = [Entry(name, tuple(paths), ones.get(name, (0, 0))) for name, paths in names.items()]
        self._by_theirs = [(_pattern(entry.name), entry) for entry in entries]
        self._by_ours = [(_pattern(entry.paths[0]), entry) for entry in entries]
        self.needs, self._ignored = needs, re.compile(ignored)

    def of_theirs(self, name: str) -> Entry | None:
        """Returns the entry of their array `name`; `None` if it has no counterpart."""
        return _found(self._by_theirs, name)

    def of_ours(self, paths: Iterable[str]) -> list[Entry]:
        """Returns the entries of our arrays."""
        return [entry for entry in (_found(self._by_ours, path) for path in paths) if entry]

    def ignores(self, name: str) -> bool:
        """Returns whether both networks compute without the array `name`."""
        return self._ignored.fullmatch(name) is not None


def layer(theirs: str, *ours: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of a layer's weight and bias. Several layers of ours are joined in one of theirs."""
    return {f"{theirs}/weight": tuple(f"{path}/w" for path in ours), f"{theirs}/bias": tuple(f"{p}/b" for p in ours)}


def norm(theirs: str, ours: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of a norm's scale and offset."""
    return {f"{theirs}/weight": (f"{ours}/scale",), f"{theirs}/bias": (f"{ours}/offset",)}


def batch_norm(theirs: str, ours: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of a `BatchNorm`'s arrays."""
    averages = {"running_mean": "moving_mean", "running_var": "moving_variance"}
    return norm(theirs, ours) | {f"{theirs}/{name}": (f"{ours}/{own}",) for name, own in averages.items()}


class _Place(NamedTuple):
    entry: Entry
    part: int


class StateDict(Weights):
    """The arrays of `tensors`, under their names in a classifier: `net/...`."""

    def __init__(self, tensors: Weights, layout: Layout, network: type[Module], settings: str):
        """`settings` names those that decide which arrays the classifier's `network` has."""
        self._tensors, self._network, self._settings = tensors, network, settings
        self._places: dict[str, _Place] = {}
        types = {}
        for name, kind in tensors.types.items():
            entry = layout.of_theirs(name)
            if entry is None:
                if not layout.ignores(name):
                    self._places[name], types[name] = _Place(Entry(name, (name,)), 0), kind
                continue
            for i, path in enumerate(entry.paths):
                self._places[f"net/{path}"] = _Place(entry, i)
                types[f"net/{path}"] = ArrayType(kind.dtype, self._shape(kind.shape, path, entry))
        super().__init__(tensors.place, types, tensors.record)

    def _shape(self, shape: tuple[int, ...], path: str, entry: Entry) -> tuple[int, ...]:
        parts = len(entry.paths)
        if parts > 1:
            if not shape or shape[0] % parts:
                raise CheckpointError(
                    f"`{entry.name}` of {self._tensors.place} has the shape {list(shape)}, but such a network keeps "
                    f"{parts} equal parts in it: write its state dict again."
                )
            shape = (shape[0] // parts, *shape[1:])
        shape = _without(shape, entry.ones)
        return tuple(shape[axis] for axis in _axes(path, AXES, len(shape)))

    def read(self, name: str) -> npt.NDArray[Any]:
        entry, part = self._places[name]
        value = self._tensors.read(entry.name)
        if len(entry.paths) > 1:
            value = np.split(value, len(entry.paths))[part]
        value = value.reshape(_without(value.shape, entry.ones))
        return np.transpose(value, _axes(name, AXES, value.ndim))

    def refusal(self, task: tf.Module) -> str | None:
        for net in (module for module in task.submodules if isinstance(module, self._network)):
            has = {f"net/{path}" for path in named_variables(net)}
            other = next((place.entry.name for path, place in self._places.items() if path not in has), None)
            if other:
                return (
                    f"{self.place} has `{other}`, which the task's {self._network.__name__} lacks: it is another "
                    f"network. Compare it with {self._settings}."
                )
        return None


def layout_of(tensors: Weights, layouts: Mapping[str, Layout], network: type[Module]) -> Layout:
    """Returns the layout, of `layouts` by program, that names most arrays; if none names any, raises an error."""
    counts = {
        program: sum(layout.of_theirs(name) is not None for name in tensors.types)
        for program, layout in layouts.items()
    }
    program = max(counts, key=counts.__getitem__)
    if not counts[program]:
        raise CheckpointError(
            f"{tensors.place} has no array of a {network.__name__} of {' or '.join(f'`{name}`' for name in layouts)}, "
            f"but {listed(list(tensors.types), most=3)}: give the file of such a network's state dict."
        )
    return layouts[program]


def arrays(net: Module, layout: Layout, program: str) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of `net` under the names of `program`, for `safetensors.numpy.save_file`."""
    ours = {path: v.numpy() for path, v in _shared(net).items()}
    if layout.needs is not None and layout.needs not in ours:
        raise ConfigurationError(
            f"a {type(net).__name__} of {program} needs `{layout.needs}`, which this network lacks, so that program "
            "can't compute the network: `trainers.load` gives its variables."
        )
    found = {}
    for name, paths, (before, after) in layout.of_ours(list(ours)):
        parts = [np.transpose(x, _axes(path, BACK, x.ndim)) for path, x in ((path, ours.pop(path)) for path in paths)]
        array = parts[0] if len(parts) == 1 else np.concatenate(parts)
        shape = (*[1] * before, *array.shape, *[1] * after)
        found[name.replace("/", ".")] = np.ascontiguousarray(array.reshape(shape))
    if ours:
        raise ConfigurationError(
            f"{program} has no name for `{min(ours)}`, which this {type(net).__name__} has, so that program can't "
            "compute the network: `trainers.load` gives its variables."
        )
    return found


def assign_all(net: Module, tensors: Weights, layout: Layout, advice: str) -> None:
    """Assigns every variable of `net` from a state dict. If an array is missing, unknown or misshapen, assigns none.

    The error lists all of these, under the names in the file, and ends with `advice`.
    """
    variables = _shared(net)
    entries = {entry.name: entry for entry in layout.of_ours(list(variables))}
    assert len(entries) == len(variables), "the layout names every variable"
    wanted = {name: ArrayType("float32", _theirs(entry, variables)) for name, entry in entries.items()}
    found = {name: kind for name, kind in tensors.types.items() if name in wanted or not layout.ignores(name)}
    check_types(_dotted(wanted), _dotted(found), network=type(net).__name__, place=tensors.place, advice=advice)
    values = {name: tensors.read(name) for name in wanted}
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise CheckpointError(f"`{name.replace('/', '.')}` of {tensors.place} isn't finite: {advice}.")
    for name, value in values.items():
        (path,) = entries[name].paths
        value = value.reshape(_without(value.shape, entries[name].ones))
        variables[path].assign(np.transpose(value, _axes(path, AXES, value.ndim)))


def _dotted(types: Mapping[str, ArrayType]) -> dict[str, ArrayType]:
    return {name.replace("/", "."): kind for name, kind in types.items()}


def _shared(net: Module) -> dict[str, tf.Variable]:
    """Returns the variables that PyTorch has, too: it doesn't correct moving averages by a weight."""
    return {path: v for path, v in named_variables(net).items() if not path.endswith("/moving_weight")}


def _theirs(entry: Entry, variables: Mapping[str, tf.Variable]) -> tuple[int, ...]:
    (path,) = entry.paths
    shape, (before, after) = tuple(variables[path].shape), entry.ones
    return (*[1] * before, *(shape[axis] for axis in _axes(path, BACK, len(shape))), *[1] * after)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\{\}", r"(\d+)"))


def _found(patterns: Sequence[tuple[re.Pattern[str], Entry]], name: str) -> Entry | None:
    """Returns the first entry whose pattern matches `name`, with its numbers."""
    for pattern, entry in patterns:
        if found := pattern.fullmatch(name):
            numbers = found.groups()
            paths = tuple(path.format(*numbers) for path in entry.paths)
            return Entry(entry.name.format(*numbers), paths, entry.ones)
    return None


def _axes(path: str, orders: Mapping[int, tuple[int, ...]], rank: int) -> tuple[int, ...]:
    return orders.get(rank, tuple(range(rank))) if path.endswith("/w") else tuple(range(rank))


def _without(shape: tuple[int, ...], ones: tuple[int, int]) -> tuple[int, ...]:
    """Returns `shape` without its first and last axes of size 1; a shape that lacks them stays."""
    before, after = ones
    if len(shape) <= before + after or {*shape[:before], *shape[len(shape) - after :]} - {1}:
        return shape
    return shape[before : len(shape) - after]
