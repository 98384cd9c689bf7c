"""A capsule (failure snapshot): the folder with all that is needed to repeat a step that wasn't finite.

Like a run's folder, it has `config/given.gin` and, in `checkpoints/`, the newest checkpoint before the step, if any.
These are hard links to the run's files: they take no space, and stay when the run deletes its checkpoint. `batch.npz`
holds the step's batch, and `capsule.json` the step and the SHA-256 of the files.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from core.disk import space_for, unfinished_folder
from core.errors import CheckpointError, ConfigurationError
from trainers.workdir import CHOICE, MEMORY

FORMAT = 1
INDEX, BATCH = "capsule.json", "batch.npz"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capsule:
    """The contents of `capsule.json`."""

    step: int  # the non-finite step, or the last one whose results weren't finite
    exit_code: int
    reason: str
    seed: int
    replicas: int  # the i-th of as many equal parts of a microbatch was on replica i
    examples: list[list[int]]  # indices in the source, [microbatches, rows]
    checkpoint: str | None  # its checkpoint's name; None: the run began at step 0
    configuration: Mapping[str, str]
    environment: Mapping[str, str]  # versions, and settings that choose kernels


def write_capsule(workdir: Path, capsule: Capsule, batch: bytes, given: Path, checkpoint: Path | None) -> Path:
    """Writes a capsule atomically into the run's folder `workdir`, replaces older capsules, and returns its path."""
    capsules = workdir / "capsules"
    target, temporary = capsules / f"step-{capsule.step:09d}", unfinished_folder(capsules)
    with space_for(target):
        try:
            (temporary / "config").mkdir(parents=True)
            shutil.copyfile(given, temporary / "config" / "given.gin")
            (temporary / BATCH).write_bytes(batch)
            for name in (CHOICE, MEMORY):  # which program the run compiled, and its microbatches
                if (workdir / name).is_file():
                    shutil.copyfile(workdir / name, temporary / name)
            sealed = ["config/given.gin", BATCH]
            if checkpoint is not None:
                _link_files(checkpoint, temporary / "checkpoints" / checkpoint.name)
                sealed.append(f"checkpoints/{checkpoint.name}/manifest.json")  # contains the hashes of the others
            files = {name: _sha256((temporary / name).read_bytes()) for name in sealed}
            content = {"format": FORMAT, **dataclasses.asdict(capsule), "files": files}
            text = json.dumps({**content, "sha256": _of_content(content)}, indent=1)
            (temporary / INDEX).write_text(f"{text}\n", encoding="utf-8")
            _remove(capsules.glob("step-*"))
            temporary.rename(target)
        except BaseException:
            _remove([temporary])
            raise
    return target


def read_capsule(path: Path) -> Capsule:
    """Reads the capsule at `path`, and verifies its files."""
    if not (path / INDEX).is_file():
        what = "is no capsule: it contains no plain file" if path.is_dir() else "is no folder with a plain file"
        raise ConfigurationError(
            f"`--capsule` is '{path}', which {what} `{INDEX}`. A run that ends at a non-finite step writes one "
            "to the folder `capsules` of its workdir, and names it in its last line."
        )
    try:
        content = json.loads((path / INDEX).read_bytes())
        if content.pop("sha256") != _of_content(content):
            raise _damaged(path, f"`{INDEX}` is not as it was written")
        files, form = content.pop("files"), content.pop("format")
        if form != FORMAT:
            raise CheckpointError(
                f"the capsule `{path}` has format {form}, and this Tapeloop reads format {FORMAT}: replay it with the "
                f"version that wrote it ({content.get('environment', {}).get('tapeloop', 'unknown')})."
            )
        for name, sha256 in files.items():
            if _sha256((path / name).read_bytes()) != sha256:
                raise _damaged(path, f"`{name}` is not as it was written (its SHA-256 differs)")
        return Capsule(**content)
    except OSError as error:
        name = Path(error.filename).name if error.filename else INDEX
        raise _damaged(path, f"`{name}` can't be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"`{INDEX}` isn't a valid capsule index ({type(error).__name__})") from None


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"the capsule `{path}` is damaged: {what}. Restore a good copy, or run the run's command again: it ends at the "
        "same step and writes another."
    )


def _link_files(source: Path, target: Path) -> None:
    """Hard-links all files of `source` into the folder `target`; copies them if the disk has no hard links."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        try:
            os.link(path, target / path.name)
        except OSError:
            shutil.copyfile(path, target / path.name)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def _of_content(content: Mapping[str, Any]) -> str:
    return _sha256(json.dumps(content, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
