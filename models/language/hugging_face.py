"""Folders of language models as Hugging Face's `transformers` writes them: `config.json` and tensors.

Each family has a table of names, read in both directions: by `Pretrained`, and by `arrays`.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from core.disk import write_whole
from core.errors import CheckpointError
from core.module import named_variables
from core.weights import ArrayType, Weights
from core.weights.pretrained_folder import FILE, open_tensors
from models.language.transformer import Transformer

TABLES = ("tokens/w", "positions/w", "types/w")  # matrices that are never transposed
Names = Mapping[str, tuple[str, ...]]  # ours by theirs; several are parts of one matrix, along its last axis


@dataclasses.dataclass(frozen=True)
class Layout:
    """Names and axes of a family's tensors; `/` replaces the `.` of their names."""

    prefix: str  # of all names but `head`; a model that was saved without its output layer lacks it
    layer: str  # of the names in a block, with `{}` for its number
    whole: Names
    block: Names
    head: Names
    transposed: bool  # matrices are [outputs, inputs]
    older: Mapping[str, str] = dataclasses.field(default_factory=dict)  # ends of names in older files, by today's

    def names(self, num_layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields each name of theirs with ours."""
        yield from self.head.items()
        for theirs, ours in self.whole.items():
            yield self.prefix + theirs, ours
        for i in range(num_layers):
            for theirs, ours in self.block.items():
                yield self.prefix + self.layer.format(i) + theirs, tuple(f"blocks/{i}/{path}" for path in ours)

    def in_files(self, theirs: str) -> list[str]:
        """Returns the names under which files may have a tensor."""
        older = [theirs.removesuffix(end) + old for end, old in self.older.items() if theirs.endswith(end)]
        return [name for full in (theirs, *older) for name in (full, full.removeprefix(self.prefix))]

    def is_turned(self, path: str) -> bool:
        """Returns whether their matrix is the transpose of ours."""
        return self.transposed and path.endswith("/w") and path not in TABLES


class _Place(NamedTuple):
    tensor: str
    part: int
    parts: int
    turned: bool


class Pretrained(Weights):
    """The tensors in a folder, under their names in a `task` whose `network` has the settings `wanted`."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        num_layers: int,
        wanted: Mapping[str, Any],
        *,
        network: type[Any] = Transformer,
        task: str = "LanguageModel",
    ):
        self._tensors = open_tensors(folder)
        self._folder, self._wanted, self._network, self._task = folder, wanted, network, task
        self._places: dict[str, _Place] = {}
        types = {}
        for full, ours in layout.names(num_layers):
            found = [name for name in layout.in_files(full) if name in self._tensors.types]
            for i, path in enumerate(ours if found else ()):
                place = _Place(found[0], i, len(ours), layout.is_turned(path))
                self._places[f"net/{path}"] = place
                types[f"net/{path}"] = self._type(place)
        super().__init__(f"`{folder}`", types, {**self._tensors.record, "path": str(folder)})

    def _type(self, place: _Place) -> ArrayType:
        dtype, shape = self._tensors.types[place.tensor]
        if place.turned:
            shape = shape[::-1]
        if place.parts > 1:
            if not shape or shape[-1] % place.parts:
                raise CheckpointError(
                    f"`{place.tensor}` of `{self._folder}` has the shape {list(shape)}, but such a model keeps "
                    f"{place.parts} equal parts in it: save it by `save_pretrained` again."
                )
            shape = (*shape[:-1], shape[-1] // place.parts)
        return ArrayType(dtype, shape)

    def read(self, name: str) -> npt.NDArray[Any]:
        place = self._places[name]
        tensor = self._tensors.read(place.tensor)
        return np.split(tensor.T if place.turned else tensor, place.parts, axis=-1)[place.part]

    def refusal(self, task: tf.Module) -> str | None:
        for net in (module for module in task.submodules if isinstance(module, self._network)):
            found = net.config.settings()
            wrong = [
                f"`{name} = {value!r}`, not {found[name]!r}"
                for name, value in self._wanted.items()
                if value != found[name]
            ]
            if wrong:
                return f"the model in `{self._folder}` needs a `{self._task}` with {', '.join(wrong)}: bind these."
        return None


def arrays(net: Any, layout: Layout) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of `net` by their names, for `safetensors.numpy.save_file`."""
    ours = {path: variable.numpy() for path, variable in named_variables(net).items()}
    found = {}
    for theirs, paths in layout.names(net.config.num_layers):
        if all(path in ours for path in paths):
            parts = [ours.pop(path) for path in paths]
            array = parts[0] if len(parts) == 1 else np.concatenate(parts, -1)
            found[theirs.replace("/", ".")] = np.ascontiguousarray(array.T if layout.is_turned(paths[0]) else array)
    assert not ours, f"the layout has no name for {sorted(ours)}"
    return found


def write_folder(net: Any, layout: Layout, described: Mapping[str, Any], folder: Path) -> None:
    """Writes `model.safetensors`, and `described` as `config.json`."""
    from safetensors.numpy import save

    tensors = save(arrays(net, layout), metadata={"format": "pt"})
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(described, indent=2)
    write_whole({folder / FILE: tensors, folder / "config.json": text.encode()}, then="repeat the command")
