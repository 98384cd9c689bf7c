"""Weights in several `.safetensors` files, which an index names: `{"weight_map": {name: file}}`."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy.typing as npt

from core.data.files import open_file
from core.errors import CheckpointError, DataError, shown
from core.weights.of_file import FileWeights, open_safetensors
from core.weights.weights import ArrayType, Weights

MOST_BYTES = 1 << 26  # of an index


class Shards(Weights):
    """The tensors of several files, by name."""

    others = True

    def __init__(self, index: Path):
        places = _read_index(index)
        files = {name: open_safetensors(index.parent / name) for name in sorted(set(places.values()))}
        self._files: dict[str, FileWeights] = {}
        types = dict[str, ArrayType]()
        for tensor, name in places.items():
            tensor = tensor.replace(".", "/")
            if tensor not in files[name].types:
                raise CheckpointError(
                    f"`{index}` says that `{tensor}` is in `{name}`, but it isn't: the files come from two downloads. "
                    "Download or write all of them again."
                )
            self._files[tensor], types[tensor] = files[name], files[name].types[tensor]
        hashes = {name: file.record["sha256"] for name, file in files.items()}
        sha256 = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
        super().__init__(f"`{index.parent}`", types, {"path": str(index), "sha256": sha256, "files": hashes})

    def read(self, name: str) -> npt.NDArray[Any]:
        return self._files[name].read(name)


def _read_index(path: Path) -> dict[str, str]:
    try:
        with open_file(path) as file:
            found = json.loads(file.read(MOST_BYTES))["weight_map"]
        names = {str(tensor): str(name) for tensor, name in found.items()}
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError, DataError) as error:
        raise CheckpointError(
            f"`{path}` can't be read as the index of a model in several files ({error}): download or write it again."
        ) from error
    for name in names.values():
        if Path(name).name != name:
            raise CheckpointError(f"`{path}` names the file {shown(name)}; all files are in the folder of the index.")
    return names


def open_shards(index: Path) -> Weights:
    """Opens the files of an index. A tensor is read when it is requested."""
    return Shards(index)
