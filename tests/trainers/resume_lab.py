"""Files of runs with the command: complete ones, and those killed after a checkpoint."""

import json
import shutil

from core import checkpoint


def outcome(workdir):
    """Returns the last step, the hashes of all variables, and the metric lines without measured seconds."""
    newest = checkpoint.newest(workdir / "checkpoints", warn=print)
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    measured = ("examples_per_second", "step_seconds", "data_wait")
    figures = [{key: x for key, x in line.items() if key not in measured} for line in lines]
    return newest.step, {path: saved.sha256 for path, saved in newest.variables.items()}, figures


def manifest_of(workdir, step):
    return json.loads((workdir / "checkpoints" / f"step-{step:09d}" / "manifest.json").read_text())


def killed_after(workdir, step, folder):
    """Copies a finished run to `folder/killed`, as a kill after the checkpoint of this step would leave it."""
    copied = shutil.copytree(workdir, folder / "killed")
    (copied / "result.json").unlink()
    for path in (copied / "checkpoints").glob("step-*"):
        if int(path.name[5:]) > step:
            shutil.rmtree(path)
    return copied
