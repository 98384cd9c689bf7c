"""Starts Slurm's own daemons: a controller, and nodes that each have their own network and host name."""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare")
NETWORK = "10.99.0"  # within the namespaces alone
CONFIGURATION = """
ClusterName=tapeloop
SlurmctldHost=ctl({network}.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
SchedulerParameters=sched_interval=2
SlurmdTimeout=20
KillWait=5
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""  # credentials that expire soon let a job that is queued again begin soon


def missing() -> list[str]:
    """Returns the commands that this machine lacks, and "root" if this process has another user."""
    return [name for name in NEEDED if not shutil.which(name)] + ([] if os.geteuid() == 0 else ["root"])


def wait_for(condition: Callable[[], object], what: str, seconds: float = 180.0) -> None:
    """Polls until the condition holds; after `seconds`, raises an error that says `what` didn't come."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} didn't come within {seconds:.0f} s")
        time.sleep(0.2)


class Cluster:
    """A Slurm cluster of `nodes` nodes, n1 and so on, from `with` to its end. Its files and logs are in `folder`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = [f"n{i}" for i in range(1, nodes + 1)]
        self._prefix = f"tapeloop{os.getpid()}"
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._stop = contextlib.ExitStack()

    def __enter__(self) -> "Cluster":
        with contextlib.ExitStack() as started:
            self._connect(started)
            self._start(started)
            self._stop = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.close()

    def run(self, *command: str | Path, variables: Mapping[str, str] | None = None) -> str:
        """Runs a command of Slurm where the controller is; returns what it prints."""
        environment = {**self._environment, **(variables or {})}
        inside = ["nsenter", f"--net={self._namespace('ctl')}", *command]
        done = subprocess.run(inside, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"`{' '.join(map(str, command))}` ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout.strip()

    def submit(self, *command: str | Path, output: Path, variables: Mapping[str, str]) -> str:
        """Submits a batch job with the Python of this process; returns its number."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return self.run("sbatch", "--parsable", f"--output={output}", *command, variables={"PATH": path, **variables})

    def job(self, number: str) -> dict[str, str]:
        """Returns what Slurm says of a job: its `JobState`, as "RUNNING", how often it `Restarts`, and so on."""
        return dict(field.partition("=")[::2] for field in self.run("scontrol", "show", "job", number, "-o").split())

    def processes(self, node: str, module: str) -> list[int]:
        """Returns the processes of a node that are `python -m module`."""
        pids = subprocess.run(["ip", "netns", "pids", self._name(node)], capture_output=True, text=True, check=True)
        found = []
        for pid in map(int, pids.stdout.split()):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if words[1:3] == ["-m", module]:
                    found.append(pid)
        return found

    def _name(self, node: str) -> str:
        return f"{self._prefix}-{node}"

    def _namespace(self, node: str) -> Path:
        return Path("/run/netns") / self._name(node)

    def _connect(self, started: contextlib.ExitStack) -> None:
        """Makes a network of namespaces with a bridge in the controller's, which this machine's network never sees."""
        hosts = "127.0.0.1 localhost\n"
        for number, node in enumerate(["ctl", *self.nodes]):
            _ip("netns", "add", self._name(node))
            started.callback(_ip, "netns", "delete", self._name(node))
            _ip("-n", self._name(node), "link", "set", "lo", "up")
            hosts += f"{NETWORK}.{number + 1} {node}\n"
        controller = self._name("ctl")
        _ip("-n", controller, "link", "add", "bridge", "type", "bridge")
        _ip("-n", controller, "addr", "add", f"{NETWORK}.1/24", "dev", "bridge")
        _ip("-n", controller, "link", "set", "bridge", "up")
        for number, node in enumerate(self.nodes):
            name = self._name(node)
            _ip("-n", controller, "link", "add", f"to-{node}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", controller, "link", "set", f"to-{node}", "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{NETWORK}.{number + 2}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        (self.folder / "hosts").write_text(hosts)

    def _start(self, started: contextlib.ExitStack) -> None:
        folder = self.folder
        (folder / "state").mkdir()
        addresses = [f"NodeName={node} NodeAddr={NETWORK}.{i + 2} CPUs=1\n" for i, node in enumerate(self.nodes)]
        text = "".join(addresses) + CONFIGURATION.format(folder=folder, network=NETWORK)
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text(
            f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={folder}/cgroup\n"
            "ConstrainCores=no\nConstrainDevices=no\nConstrainRAMSpace=no\n"
        )
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._daemon(started, "ctl", "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
        wait_for((folder / "munge.socket").exists, "munged's socket")
        self._daemon(started, "ctl", "slurmctld", "-D")
        for node in self.nodes:
            self._daemon(started, node, "slurmd", "-D", "-N", node)
        wait_for(lambda: self._in_state("idle") == self.nodes, f"the start of the nodes (logs: `{folder}`)", 60.0)

    def resume(self) -> None:
        """Takes drained and lost nodes back, and waits until all are idle."""
        for node in {*self._in_state("drain"), *self._in_state("down")}:
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        wait_for(lambda: self._in_state("idle") == self.nodes, "the return of the nodes")

    def _in_state(self, state: str) -> list[str]:
        with contextlib.suppress(RuntimeError):  # the controller doesn't listen yet
            return sorted(self.run("sinfo", "--noheader", "--Node", f"--states={state}", "--format=%N").split())
        return []

    def _daemon(self, started: contextlib.ExitStack, node: str, *command: str) -> None:
        """Starts a daemon in a node's network, with its host name and the hosts of all."""
        script = f'hostname {node} && mount --bind "$0" /etc/hosts && exec "$@"'
        inside = ["nsenter", f"--net={self._namespace(node)}", "unshare", "--uts", "--mount", "sh", "-c", script]
        log = started.enter_context((self.folder / f"{command[0]}-{node}.out").open("w"))
        process = subprocess.Popen(
            [*inside, str(self.folder / "hosts"), *command], env=self._environment, stdout=log, stderr=log
        )
        started.callback(process.wait)
        started.callback(process.terminate)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
