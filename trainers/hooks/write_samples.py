"""Sample files of hooks, written into the folder `samples` of a run."""

from core.disk import space_for, write_whole
from trainers.hooks.base import Run

LACKING = "until then the run goes on without"


def keep_sample(run: Run, name: str, content: bytes) -> None:
    """Writes a file, whole; where there is no room for it, it is left out, with one warning."""
    path = run.workdir.path / "samples" / name
    with run.telemetry.sparing():
        with space_for(path.parent, then=LACKING):
            path.parent.mkdir(exist_ok=True)
        write_whole({path: content}, then=LACKING)
