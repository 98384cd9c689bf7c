"""Resumes after damage to each file of a killed run: truncated, flipped, emptied, deleted, swapped, unreadable.

The run resumes from a good checkpoint to the same bits, or names the file that it can't read (exit code 5; 2 for a file
outside checkpoints). Once the damage is undone, the same command ends with the same bits.
"""

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from core.errors import CheckpointError, ConfigurationError
from tools.campaign import subject
from tools.campaign.lab import Bench, Case, Lab

KILLED_AT = "open checkpoints/.tmp-step-000000030/manifest.json #1"  # with two complete checkpoints and half a third


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each file and damage."""
    template = lab.scratch / "killed"
    subject.write(template)
    code = lab.run(template, at=KILLED_AT, act="kill").returncode
    assert code == -signal.SIGKILL, code
    _write_result(lab, template)
    names = sorted(str(path.relative_to(template / "run")) for path in (template / "run").rglob("*") if path.is_file())
    pairs = [(name, damage) for name in names for damage in DAMAGES]
    for name, damage in pairs[68::120] if lab.short else pairs:
        yield Case(
            f"{damage} {name}",
            lambda bench, name=name, damage=damage: damaged(bench, template, name, DAMAGES[damage]),
            re.sub(r"tfevents.*", "tfevents", name),
        )


def _write_result(lab: Lab, template: Path) -> None:
    """Writes a `result.json`, which a killed run lacks: the resumed run must cope with it."""
    shutil.copy(lab.whole / "run" / "result.json", template / "run")


def damaged(bench: Bench, template: Path, name: str, damage: Callable[[Path, Random], None]) -> None:
    """Damages one file and resumes; restores the file if the run was refused."""
    folder = bench.new(template)
    victim = folder / "run" / name
    damage(victim, bench.chance)
    of_checkpoint = name.startswith("checkpoints/")
    refusals = (
        (CheckpointError.exit_code,) if of_checkpoint else (CheckpointError.exit_code, ConfigurationError.exit_code)
    )
    done = bench.run(folder, codes=(0, *refusals), plain_user=damage is lose_rights)
    if done.returncode in refusals:
        bench.count(f"said {done.returncode}")
        if Path(name).name not in done.stderr and "checkpoint" not in done.stderr:
            bench.fail(f"the paragraph names neither the file nor its checkpoint: {done.stderr.strip()[:300]}")
        _remove(victim)
        shutil.copy(template / "run" / name, victim)
        bench.run(folder)
    else:
        bench.count("went on")
        if "resuming from step" not in done.stdout and "already finished" not in done.stdout:
            bench.fail("began afresh, in silence")
        if name == "result.json" and not (victim.is_file() and not victim.is_symlink()):
            bench.fail("ended with 0, and left no `result.json`")
            return
        if name != "result.json" and os.path.lexists(victim) and not victim.is_file():  # it may stay, unused
            _remove(victim)
            shutil.copy(template / "run" / name, victim)
        if victim.is_file():
            victim.chmod(0o644)
    bench.same(folder, lost=name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def truncate(path: Path, chance: Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))] if content else b"")


def flip(path: Path, chance: Random) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def empty(path: Path, chance: Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, chance: Random) -> None:
    path.unlink()


def take_anothers(path: Path, chance: Random) -> None:
    """Replaces a file's content with another file's: the same file of another checkpoint if there is one."""
    root = next(parent for parent in path.parents if parent.name == "run")
    others = sorted(found for found in root.rglob("*") if found.is_file() and found != path)
    other = chance.choice([found for found in others if found.name == path.name] or others)
    path.write_bytes(other.read_bytes())


def lose_rights(path: Path, chance: Random) -> None:
    """Removes read and write permission; a user who may read it anyway (root) drops that right before the run."""
    path.chmod(0)


def become_folder(path: Path, chance: Random) -> None:
    path.unlink()
    path.mkdir()


def become_pipe(path: Path, chance: Random) -> None:
    path.unlink()
    os.mkfifo(path)


def become_device(path: Path, chance: Random) -> None:
    """Replaces a file with an endless device of zeros."""
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES: dict[str, Callable[[Path, Random], None]] = {
    damage.__name__: damage
    for damage in (truncate, flip, empty, delete, take_anothers, lose_rights, become_folder, become_pipe, become_device)
}
