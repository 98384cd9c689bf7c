"""Starts a chief, workers and parameter servers on loopback with the real command."""

import contextlib
import functools
import json
import os
import signal
import time

import tensorflow as tf

from tests.commands import CONFIGS, fork_server
from tests.served.processes import started
from tests.trainers.launch.launch_lab import alive
from trainers.launch.commands import free_ports

RUNTIME = f"--gin_file={CONFIGS / 'runtime' / 'parameter_server.gin'}"


class Served:
    """Workers and servers of one chief."""

    def __init__(self, folder, *, workers=1, servers=1):
        jobs = {"chief": 1, "ps": servers, "worker": workers}
        ports = iter(free_ports(sum(jobs.values())))
        self.cluster = {job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in jobs.items()}
        self.folder, self.pids = folder, {}
        self.elsewhere = folder / "elsewhere"  # the chief alone has a workdir: another process's would be elsewhere
        self.elsewhere.mkdir(exist_ok=True)
        for job in ("ps", "worker"):
            for index in range(jobs[job]):
                self.start(job, index)

    def start(self, job, index):
        """Starts a worker or server, or restarts it."""
        log = self.folder / f"{job}-{index}.log"
        log.touch()
        streams = {"stdout": str(log), "stderr": str(log)}
        request = {"arguments": ["--gin_file=none.gin"], "cwd": str(self.elsewhere), **streams}
        self.pids[job, index] = _forked({**request, "before": self._as(job, index)})

    def signal(self, job, index, number):
        os.kill(self.pids[job, index], number)

    def kill(self, job, index):
        """Kills one, and waits until it and its port are gone."""
        self.signal(job, index, signal.SIGKILL)
        until = time.monotonic() + 60
        while alive(self.pids[job, index]):
            assert time.monotonic() < until
            time.sleep(0.01)

    def train(self, *arguments, timeout=150):
        """Runs the command as the chief."""
        deadline = "--gin_param=parameter_server.meeting_deadline = 60.0"
        return fork_server().run(deadline, *arguments, cwd=self.folder, timeout=timeout, before=self._as("chief", 0))

    def _as(self, job, index):
        arguments = {"cluster": self.cluster, "job": job, "index": index, "token": "between us"}
        return {"module": "tests.served.role", "arguments": arguments}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


_processes = functools.cache(lambda: started("tests.served.processes"))


def _forked(request):
    server = _processes()
    server.write(f"{json.dumps(request)}\n".encode())
    return int(server.readline())


def flags(*bindings, workdir, name="digits_linear", files=()):
    """Returns the flags of a short run with evaluation and checkpoint at its end only."""
    shipped = [f"--gin_file={CONFIGS / name}.gin"]
    often = ["Trainer.log_every = 10", "Trainer.evaluate_every = None", "Trainer.checkpoint_every = None"]
    return [*shipped, *files, *(f"--gin_param={binding}" for binding in (*often, *bindings)), f"--workdir={workdir}"]


def manifest(workdir):
    """Returns the manifest of the newest checkpoint."""
    newest = max((workdir / "checkpoints").glob("step-*"))
    return json.loads((newest / "manifest.json").read_text())


def hashes(workdir):
    """Returns a hash of each variable of the newest checkpoint."""
    return {path: saved["sha256"] for path, saved in manifest(workdir)["variables"].items()}


def values(workdir):
    """Returns the variables of the newest checkpoint, without metrics."""
    newest = max((workdir / "checkpoints").glob("step-*"))
    reader = tf.train.load_checkpoint(str(newest / "variables"))
    names = {path: f"variables/{path.replace('.', '..').replace('/', '.S')}" for path in manifest(workdir)["variables"]}
    return {
        path: reader.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE")
        for path, name in names.items()
        if not path.startswith("figures/")
    }


def figures(workdir, split="train"):
    """Returns the metric lines of a split."""
    lines = (json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == split]


COUNT = """
import gin
import tensorflow as tf
from core.data import ArraySource
from core.module import Module
from core.optimizers import sgd
from core.task import Loss, Task, Update

class Net(Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(0.0, name="w")

@gin.configurable
class Count(Task):
    def __init__(self, *, rng):
        super().__init__()
        self.net = Net()

    def phases(self):
        return [Update("net", loss=self.loss, trains=self.net, optimizer=sgd(1.0))]

    def loss(self, batch, rng):
        return Loss(tf.fill([batch["x"].shape[0]], -self.net.w))

@gin.configurable
def zeros():
    return ArraySource({"x": [0.0] * 20}, name="zeros")
"""


def counting(folder, *bindings):
    """Returns the flags of a run whose every step adds one to a weight."""
    (folder / "count.py").write_text(COUNT)
    task = ["import count", "Experiment.task = @Count", "Experiment.train_source = @zeros()"]
    often = ["Trainer.global_batch_size = 4", "Trainer.log_every = 100"]
    (folder / "count.gin").write_text("\n".join([*task, *often]))
    params = (f"--gin_param={binding}" for binding in bindings)
    return ["--gin_file=count.gin", RUNTIME, *params, "--workdir=run"]


def counted(workdir):
    """Returns the final weight and step of such a run."""
    found = values(workdir)
    return {"w": found["task/net/w"], "step": found["optimizer/net/step"]}
