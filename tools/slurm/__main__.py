"""`python -m tools.slurm --workdir=W`: runs `deploy/slurm.sh` and `deploy/slurm_servers.sh` on a real Slurm.

Each node is a network namespace of this machine. Needs root, and `apt install slurm-wlm munge iproute2`. A job trains
on two nodes; others are killed, stopped and lose a node meanwhile. Each must end with an undisturbed run's numbers.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.slurm.cluster import Cluster, missing, wait_for

CHECKOUT = Path(__file__).resolve().parents[2]
STEPS = 3_000
FLAGS = (
    "--gin_file=configs/digits_linear.gin",
    f"--gin_param=Trainer.steps = {STEPS}",
    "--gin_param=Trainer.checkpoint_every = 100",
    "--gin_param=Trainer.log_every = 500",
)
NEAR = 1e-3  # sums over one worker and over two round differently
PROGRAM = "trainers.main"


class Lab:
    """Submits jobs, and looks at their runs. `cluster` has three nodes."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.expected: dict[str, Any] = {}  # the undisturbed run's result

    def begin(self, name: str, *options: str, script: str = "slurm.sh", **variables: str) -> tuple[str, Path]:
        """Submits a run and waits for its first checkpoint; returns the job's number and the run's folder."""
        run = self.folder / name
        command = [f"--chdir={CHECKOUT}", *options, str(CHECKOUT / "deploy" / script), *FLAGS, f"--workdir={run}"]
        job = self.cluster.submit(*command, output=self.folder / f"{name}.log", variables=variables)
        wait_for(lambda: any(run.glob("checkpoints/step-*")), f"the first checkpoint of `{name}`")
        return job, run

    def end(self, job: str, run: Path, *, requeued: bool) -> dict[str, Any]:
        """Waits for a job's end; returns the run's result."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        wait_for(lambda: self.cluster.job(job)["JobState"] in over, f"the end of `{run.name}`", 400.0)
        found = self.cluster.job(job)
        if found["JobState"] != "COMPLETED" or (int(found["Restarts"]) > 0) != requeued:
            log = (self.folder / f"{run.name}.log").read_text()
            raise AssertionError(f"{found['JobState']}, queued again {found['Restarts']} times:\n{log[-2000:]}")
        result: dict[str, Any] = json.loads((run / "result.json").read_text())
        return result

    def workers(self, node: str) -> list[int]:
        """Returns the training processes of a node."""
        return self.cluster.processes(node, PROGRAM)


def trains(lab: Lab) -> None:
    """Two nodes train, and the job ends."""
    lab.expected = lab.end(*lab.begin("trains", "--nodes=2"), requeued=False)
    if lab.expected["step"] != STEPS or lab.expected["exit_code"]:
        raise AssertionError(f"the result is {lab.expected}")


def loses_a_worker(lab: Lab) -> None:
    """SIGKILL to a worker: the other notices, the job is queued again, and ends with the same bits."""
    job, run = lab.begin("killed", "--nodes=2")
    for pid in lab.workers("n2"):
        os.kill(pid, signal.SIGKILL)
    _same(lab.end(job, run, requeued=True), lab.expected)


def is_preempted(lab: Lab) -> None:
    """SIGTERM from Slurm: the workers save, the job is queued again, and ends with the same bits."""
    job, run = lab.begin("stopped", "--nodes=2")
    lab.cluster.run("scancel", "--signal=TERM", f"{job}.0")
    _same(lab.end(job, run, requeued=True), lab.expected)


def loses_a_node(lab: Lab) -> None:
    """A node goes down: the job is queued again on the nodes that are left, and ends near the same numbers."""
    lab.cluster.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=unused")
    try:
        job, run = lab.begin("smaller", "--nodes=1-2")
        lab.cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=lost")
        wait_for(lambda: not lab.workers("n2"), "the end of the lost node's worker")
        result = lab.end(job, run, requeued=True)
    finally:
        lab.cluster.resume()
    log = (lab.folder / "smaller.log").read_text()
    if "2 workers on 2 nodes" not in log or "1 workers on 1 nodes" not in log:
        raise AssertionError(f"the job didn't run on two nodes, then on one:\n{log[-2000:]}")
    _same(result, lab.expected, near=NEAR)


def trains_with_servers(lab: Lab) -> None:
    """A chief, a server and a worker train asynchronously; the worker is killed, starts again, and the run ends."""
    job, run = lab.begin("servers", "--nodes=3", script="slurm_servers.sh", SERVERS="1")
    for pid in lab.workers("n3"):
        os.kill(pid, signal.SIGKILL)
    result = lab.end(job, run, requeued=False)
    if result["step"] != STEPS or result["exit_code"]:
        raise AssertionError(f"the result is {result}")


def _same(found: dict[str, Any], expected: dict[str, Any], near: float = 0.0) -> None:
    pairs = [(found["evaluation"][name], value) for name, value in expected["evaluation"].items()]
    if found["step"] != expected["step"] or not all(math.isclose(x, y, rel_tol=near) for x, y in pairs):
        raise AssertionError(f"the result is {found}, that of the undisturbed run {expected}")


SCENES: tuple[Callable[[Lab], None], ...] = (trains, loses_a_worker, is_preempted, loses_a_node, trains_with_servers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each scene; returns 1 if one failed, and 2 if this machine can't run Slurm."""
    parser = argparse.ArgumentParser(prog="python -m tools.slurm", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--workdir", type=Path, required=True, help="an empty folder for the cluster and the runs")
    folder = parser.parse_args(arguments).workdir.resolve()
    if lacking := missing():
        print(f"error: this machine lacks {', '.join(lacking)}: `apt install slurm-wlm munge iproute2`, as root")
        return 2
    folder.mkdir(parents=True)
    failed = 0
    with Cluster(folder, nodes=3) as cluster:
        print(cluster.run("sinfo", "--version"), f"with {len(cluster.nodes)} nodes", flush=True)
        lab = Lab(cluster, folder)
        for scene in SCENES:
            began = time.monotonic()
            try:
                scene(lab)
                said = "ok    "
            except (AssertionError, RuntimeError, TimeoutError) as error:
                said, failed = "FAILED", failed + 1
                print(error)
            shown = " ".join((scene.__doc__ or "").split())
            print(f"{said} {scene.__name__}: {shown} ({time.monotonic() - began:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
