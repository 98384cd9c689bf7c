"""Folders of models as `save_pretrained` of Hugging Face's libraries writes them: `config.json` and tensors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.data.files import open_file
from core.errors import CheckpointError, DataError, shown
from core.weights.of_file import open_safetensors
from core.weights.shards import open_shards
from core.weights.weights import Weights

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
MOST_BYTES = 1 << 20  # of `config.json`
LARGEST = 1e15  # of its numbers


def open_tensors(folder: Path) -> Weights:
    """Opens the tensors in `folder`, from one file or several."""
    single = (folder / FILE).exists() or not (folder / INDEX).exists()
    return open_safetensors(folder / FILE) if single else open_shards(folder / INDEX)


def read_config(folder: Path, computed: Mapping[str, tuple[Any, ...]], task: str) -> dict[str, Any]:
    """Returns the contents of `config.json`.

    `computed` has the values that the `task` can compute, by name; the first of them is the default. Another value
    raises a `CheckpointError`.
    """
    path = folder / "config.json"
    advice = f"Give the folder in which `save_pretrained` has written a model: `config.json` and `{FILE}`"
    try:
        with open_file(path) as file:
            config = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError, DataError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't JSON"
        raise CheckpointError(f"`{path}` can't be read: {reason}. {advice}.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"`{path}` holds no settings by name. {advice}.")
    for name, known in computed.items():
        if config.get(name, known[0]) not in known:
            raise CheckpointError(
                f"`{path}` has `{name}` = {shown(config[name])}, which no `{task}` computes: only "
                f"{', '.join(map(shown, known))} {'is' if len(known) == 1 else 'are'} supported."
            )
    return config


def number(config: Mapping[str, Any], folder: Path, name: str, default: Any = None) -> Any:
    """Returns a number of `config.json`; raises a `CheckpointError` if it is missing or no number."""
    value = config.get(name, default)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
        raise CheckpointError(
            f"`{folder / 'config.json'}` has `{name}` = {shown(value)}, where a number above 0 should be: save the "
            "model by `save_pretrained` again."
        )
    return value
