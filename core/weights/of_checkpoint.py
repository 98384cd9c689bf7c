"""Weights from another run: from its newest checkpoint, or from a chosen one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy.typing as npt
import tensorflow as tf

from core.checkpoint import Manifest, newest, plainly_named
from core.checkpoint.files import file_sha256, reason
from core.checkpoint.manifest import MANIFEST, PREFIX, DamagedError, verified
from core.checkpoint.parts import key_of
from core.data.files import path_of
from core.errors import CheckpointError, did_you_mean
from core.weights.weights import ArrayType, StartFrom, Weights

AVERAGES = "averages"  # the manifest's entry for where averages of variables are stored
TASK = "task/"
_AVERAGING = ("ema", "polyak", "lookahead", "sam", "schedule_free_adamw")  # for checkpoints without that entry


@gin.configurable
def checkpoint(
    path: str, *, take: Sequence[str] = ("*",), rename: Mapping[str, str] = {}, averaged: bool = True
) -> StartFrom:
    """Starts from the checkpoint at `path`: a run's folder, for its newest one, or a `checkpoints/step-...` folder.

    The weights are those that the other run evaluates: averages, if it keeps them. With `averaged=False`, they are
    those that it trains.
    """
    return StartFrom(lambda: CheckpointWeights(path_of(path), averaged=averaged), path, take, rename)


class CheckpointWeights(Weights):
    """The variables of a task in a checkpoint, by path, without optimizer slots."""

    def __init__(self, path: Path, *, averaged: bool):
        manifest = self._manifest = _found(path)
        saved = manifest.variables
        # A custom loop may have saved its variables under any names.
        names = [name for name in saved if name.startswith(TASK)] or list(saved)
        self._places = {name.removeprefix(TASK): name for name in names}
        self._averages = _averages(manifest, averaged)
        self._places |= {name: place for name, place in self._averages.items() if name in self._places}
        super().__init__(
            f"`{manifest.path}`",
            {name: ArrayType(saved[place].dtype, saved[place].shape) for name, place in self._places.items()},
            {"path": str(manifest.path), "step": manifest.step, "sha256": self._sha256()},
        )

    def _sha256(self) -> str:
        try:
            return file_sha256(self._manifest.path / MANIFEST)
        except OSError as error:
            raise self._unread("manifest.json", error) from error

    def read(self, name: str) -> npt.NDArray[Any]:
        kind, path = self.types[name], self._manifest.path
        try:
            with plainly_named(path) as plain, tf.device("CPU:0"):
                (value,) = tf.raw_ops.RestoreV2(
                    prefix=f"{plain}/{PREFIX}",
                    tensor_names=[key_of(self._places[name])],
                    shape_and_slices=[""],
                    dtypes=[kind.dtype],
                )
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise self._unread(name, error) from error
        array: npt.NDArray[Any] = value.numpy()
        return array

    def _unread(self, name: str, error: Exception) -> CheckpointError:
        path = self._manifest.path
        return CheckpointError(
            f"`{name}` of `{path}` could not be read: {reason(error, path)}. If its run has just removed it, run the "
            "same command again: it takes the newest."
        )

    def called(self, name: str) -> str:
        return "averages" if name in self._averages else ""


def _found(path: Path) -> Manifest:
    """Returns the checkpoint at `path`, or the newest one in it if `path` is a run's folder."""
    if (path / MANIFEST).is_file():
        try:
            return verified(path)
        except DamagedError as error:
            raise CheckpointError(
                f"this run can't start from the checkpoint `{path}`: {error}. Name another, or the folder of its run, "
                "whose newest good one is used."
            ) from error
    folder = path / "checkpoints"
    manifest = newest(folder if folder.is_dir() else path, warn=print) if path.is_dir() else None
    if manifest is None:
        siblings = [other.name for other in path.parent.iterdir() if other.is_dir()] if path.parent.is_dir() else []
        what = "holds no checkpoint" if path.is_dir() else "isn't a folder"
        near = "" if path.exists() else did_you_mean(path.name, siblings)
        near += " For a weight file, use `@npz_weights()` or `@safetensors_weights()`." if path.is_file() else ""
        raise CheckpointError(
            f"`{path}`, from which this run should start, {what}.{near} Give the folder of a run that has saved one, "
            "or one of its `checkpoints/step-*`. A relative path starts at the command's working directory."
        )
    return manifest


def _averages(manifest: Manifest, averaged: bool) -> dict[str, str]:
    """Returns `{variable: saved name of its average}`; empty without `averaged`, or if there are no averages."""
    if not averaged:
        return {}
    instead = "Give `averaged=False`, which takes the weights that its training used"
    places = manifest.extra.get(AVERAGES)
    if not isinstance(places, dict):
        rules = {part for name in manifest.variables if not name.startswith(TASK) for part in name.split("/")}
        if rules.isdisjoint(_AVERAGING):
            return {}
        raise CheckpointError(
            f"`{manifest.path}` holds averages of its weights, but is too old to say where they are stored. {instead}, "
            "or let its run save once more."
        )
    computed = [name for name, place in places.items() if place is None]
    if computed:
        raise CheckpointError(
            f"`{manifest.path}` doesn't contain the weights that evaluation reads: its optimizer computes "
            f"`{computed[0]}` and others. {instead}."
        )
    return {name: str(place) for name, place in places.items() if place in manifest.variables}
