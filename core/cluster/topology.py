"""This process's place in a cluster, from `TF_CONFIG` or from Slurm.

    >>> config = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 1}}'
    >>> cluster_from_environment({"TF_CONFIG": config})
    Cluster(workers=('a:2222', 'b:2222'), index=1)

Kubernetes works through `TF_CONFIG`, which its TFJob operator sets.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from core.errors import ConfigurationError, shown

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'

JOBS = ("chief", "ps", "worker")  # in the order of `Cluster.workers`
_ELSEWHERE = {
    "evaluator": "workers evaluate as they train: leave this job out, and to evaluate beside them run "
    "`--mode=evaluate_continuously` in a process without `TF_CONFIG`"
}

_MISSING = object()


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The addresses of all workers, and the index of this process among them."""

    workers: tuple[str, ...]  # "host:port", the chief first
    index: int

    @property
    def size(self) -> int:
        return len(self.workers)

    @property
    def is_chief(self) -> bool:
        """Says whether this process writes checkpoints, metrics and results."""
        return self.index == 0

    @property
    def address(self) -> str:
        return self.workers[self.index]

    def name(self, index: int) -> str:
        return f"worker {index} ({self.workers[index]})"

    @property
    def spec(self) -> dict[str, list[str]]:
        return {"worker": list(self.workers)}


@dataclasses.dataclass(frozen=True)
class ServedCluster(Cluster):
    """A cluster with parameter servers (`ps`), which store the variables. The chief schedules steps on workers."""

    jobs: tuple[str, ...]  # of each address

    @property
    def size(self) -> int:
        """Returns 1: for a strategy, the chief is the only process, because it schedules the steps of all workers."""
        return 1

    @property
    def job(self) -> str:
        return self.jobs[self.index]

    @property
    def place(self) -> int:
        """Returns this process's index among the processes of its job, such as 1 for the second `ps`."""
        return self.index - self.jobs.index(self.job)

    def name(self, index: int) -> str:
        job = self.jobs[index]
        return f"{'the chief' if job == 'chief' else f'{job} {index - self.jobs.index(job)}'} ({self.workers[index]})"

    @property
    def spec(self) -> dict[str, list[str]]:
        pairs = list(zip(self.workers, self.jobs, strict=True))
        return {job: [address for address, its in pairs if its == job] for job in JOBS}


def cluster_from_environment(environment: Mapping[str, str] | None = None) -> Cluster | None:
    """Returns this process's cluster from `TF_CONFIG` or Slurm's variables; None for a single process."""
    environment = os.environ if environment is None else environment
    if environment.get("TF_CONFIG"):
        return _from_tf_config(environment["TF_CONFIG"])
    if "SLURM_JOB_ID" in environment:
        for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):  # of this step, then of the whole job
            if name in environment:
                return _from_slurm(environment) if _whole(environment, name) > 1 else None
    return None


# --- TF_CONFIG --------------------------------------------------------------------------------------------------------


def _from_tf_config(text: str) -> Cluster:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"`TF_CONFIG` is not JSON ({error}); it is {text[:200]!r}. A whole one looks like {EXAMPLE}."
        ) from None
    if not isinstance(config, dict):
        raise _refused("TF_CONFIG", config, "must be a JSON object")
    jobs = _object(config, "cluster")
    for job, addresses in jobs.items():
        if job not in JOBS:
            why = _ELSEWHERE.get(job, "is no job that is known here")
            raise _refused(f"TF_CONFIG.cluster.{shown(job)[1:-1]}", addresses, why)
    lists = {job: _addresses(jobs, job) for job in JOBS}
    if len(lists["chief"]) > 1:
        raise _refused("TF_CONFIG.cluster.chief", lists["chief"], "must name one address: further ones are workers")
    if lists["ps"] and not lists["chief"]:
        why = 'must name the address of the chief, such as "chief": ["host0:2222"]'
        raise _refused("TF_CONFIG.cluster.chief", jobs.get("chief", _MISSING), why)
    if not lists["worker"] and (lists["ps"] or not lists["chief"]):
        raise _refused("TF_CONFIG.cluster.worker", jobs.get("worker", _MISSING), "must name at least one address")
    places: dict[str, str] = {}
    for job in JOBS:
        for i, address in enumerate(lists[job]):
            name = f"TF_CONFIG.cluster.{job}[{i}]"
            if address in places:
                raise _refused(name, address, f"is the same address as `{places[address]}`: each process needs its own")
            places[address] = name
    index = _index(_object(config, "task"), lists)
    if not lists["ps"]:
        return Cluster(tuple(places), index)
    return ServedCluster(tuple(places), index, tuple(job for job in JOBS for _ in lists[job]))


def _index(task: Mapping[str, Any], lists: Mapping[str, list[str]]) -> int:
    """Returns a process's index among all processes, computed from its job and its index there (`TF_CONFIG.task`)."""
    job, index = task.get("type", _MISSING), task.get("index", _MISSING)
    if isinstance(job, str) and job in _ELSEWHERE:
        raise _refused("TF_CONFIG.task.type", job, _ELSEWHERE[job])
    if not isinstance(job, str) or not lists.get(job):
        known = " or ".join(f'"{name}"' for name, addresses in lists.items() if addresses)
        raise _refused("TF_CONFIG.task.type", job, f"must be {known}, a job of the cluster")
    count = len(lists[job])
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        allowed = f"a whole number from 0 to {count - 1}" if count > 1 else "0"
        raise _refused("TF_CONFIG.task.index", index, f"must be {allowed}, a place in `TF_CONFIG.cluster.{job}`")
    return index + sum(len(lists[before]) for before in JOBS[: JOBS.index(job)])


def _addresses(jobs: Mapping[str, Any], job: str) -> list[str]:
    name, addresses = f"TF_CONFIG.cluster.{job}", jobs.get(job, [])
    if not isinstance(addresses, list):
        raise _refused(name, addresses, 'must be a list of "host:port"')
    for i, address in enumerate(addresses):
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        bracketed = host.startswith("[") and host.endswith("]")  # as addresses of version 6 are written before a port
        known = host.isprintable() and host and not any(x in "/, \t\n" or (x == ":" and not bracketed) for x in host)
        if not known or not (port.isascii() and port.isdigit() and 0 < int(port[:9]) < 65536):
            raise _refused(f"{name}[{i}]", address, 'must be "host:port", with a port from 1 to 65535')
    return addresses


def _object(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key, _MISSING)
    if not isinstance(value, dict):
        raise _refused(f"TF_CONFIG.{key}", value, "must be a JSON object")
    return value


def _refused(name: str, value: Any, why: str) -> ConfigurationError:
    said = "missing" if value is _MISSING else json.dumps(value)[:200]
    return ConfigurationError(f"`{name}` is {said}: {why}. A whole `TF_CONFIG` looks like {EXAMPLE}.")


# --- Slurm ------------------------------------------------------------------------------------------------------------

_STEP = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST")


def _from_slurm(environment: Mapping[str, str]) -> Cluster:
    for name in _STEP:
        if name not in environment:
            raise ConfigurationError(
                f"`{name}` is not set, though Slurm job {environment['SLURM_JOB_ID']} has several tasks: start the "
                "workers by `srun`, inside the job, which sets it for each."
            )
    tasks, rank = _whole(environment, "SLURM_STEP_NUM_TASKS"), _whole(environment, "SLURM_PROCID")
    if rank >= tasks:
        raise ConfigurationError(
            f"`SLURM_PROCID` is {rank}, but `SLURM_STEP_NUM_TASKS` {tasks}: start the workers by one `srun`."
        )
    # Jobs that share a machine must not share ports; these are below the ephemeral ports of the system.
    port = 10_000 + _whole(environment, "SLURM_JOB_ID") % 20_000

    import tensorflow as tf  # only here: a single process needn't wait for it

    try:
        with _as_of_process(environment):
            # By default the resolver asks `nvidia-smi` for GPUs, and fails without one. Slurm assigns GPUs to each task
            # (`--gpus-per-task`); with one pretended GPU per task, the resolver assigns none.
            resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
                port_base=port, gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False
            )
            workers = resolver.cluster_spec().as_dict()["worker"]
    except (KeyError, ValueError, RuntimeError) as error:
        given = ", ".join(f"`{name}` ({environment[name]!r})" for name in _STEP)
        raise ConfigurationError(
            f"TensorFlow makes no cluster of {given}: {error}. Start the workers by `srun`, which sets them all, or "
            f"set `TF_CONFIG` for each, such as {EXAMPLE}."
        ) from error
    if "SLURMD_NODENAME" not in environment:
        return Cluster(tuple(workers), rank)
    # The resolver sorts hosts as text (n10 before n9), while Slurm numbers ranks in its own order, or round-robin. The
    # host and the task's index on it identify a place.
    address = f"{environment['SLURMD_NODENAME']}:{port + _whole(environment, 'SLURM_LOCALID')}"
    if address not in workers:
        raise ConfigurationError(
            f"`SLURMD_NODENAME` and `SLURM_LOCALID` make this task {address}, which is not among {workers}, the tasks "
            f"of `SLURM_STEP_NODELIST` ({environment['SLURM_STEP_NODELIST']!r}): start the workers by one `srun`."
        )
    return Cluster(tuple(workers), workers.index(address))


def _whole(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name)
    if value is None or not (value.isascii() and value.isdigit()):
        said = "is not set" if value is None else f"is {value!r}, not a whole number"
        raise ConfigurationError(f"`{name}` {said}: start the workers by `srun`, which sets it for each.")
    return int(value)


@contextlib.contextmanager
def _as_of_process(environment: Mapping[str, str]) -> Iterator[None]:
    """Replaces Slurm's variables in `os.environ` in its `with` block: TensorFlow's resolver reads only these."""
    slurm = [name for name in {*os.environ, *environment} if name.startswith("SLURM")]
    before = {name: os.environ.get(name) for name in slurm}
    try:
        _set_all({name: environment.get(name) for name in slurm})
        yield
    finally:
        _set_all(before)


def _set_all(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
