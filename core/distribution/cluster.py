"""Who this process is among several: from `TF_CONFIG`, or from Slurm.

    >>> config = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 1}}'
    >>> cluster_from_environment({"TF_CONFIG": config})
    Cluster(workers=('a:2222', 'b:2222'), index=1)

Kubernetes needs nothing of its own: its TFJob operator sets `TF_CONFIG`.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from core.errors import ConfigurationError

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers' addresses, and which of them this process is."""

    workers: tuple[str, ...]  # "host:port", the chief first
    index: int

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self.workers)

    @property
    def is_chief(self) -> bool:
        """Whether this is the worker that writes."""
        return self.index == 0

    @property
    def address(self) -> str:
        """This worker's own."""
        return self.workers[self.index]

    @property
    def spec(self) -> dict[str, list[str]]:
        """As TensorFlow wants it."""
        return {"worker": list(self.workers)}


def cluster_from_environment(environment: Mapping[str, str] | None = None) -> Cluster | None:
    """The cluster that this process was started in; `None` where it stands alone."""
    environment = os.environ if environment is None else environment
    if environment.get("TF_CONFIG"):
        return _from_tf_config(environment["TF_CONFIG"])
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or "1"
    if "SLURM_JOB_ID" in environment and tasks.isdigit() and int(tasks) > 1:
        return _from_slurm()
    return None


def _from_tf_config(text: str) -> Cluster:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise _refused("TF_CONFIG", text, f"is not JSON ({error})") from None
    cluster = _object(config, "TF_CONFIG").get("cluster")
    jobs = _object(cluster, "TF_CONFIG.cluster")
    for job in jobs:
        if job == "ps":
            raise _refused("TF_CONFIG.cluster.ps", jobs[job], "is for parameter servers, which `multi_worker` has not")
        if job not in ("worker", "chief"):
            raise _refused("TF_CONFIG.cluster", sorted(jobs), f"has a job `{job}`; `worker` and `chief` are known")
    chief = _addresses(jobs.get("chief", []), "chief")
    if len(chief) > 1:
        raise _refused("TF_CONFIG.cluster.chief", chief, "names several; there is one chief")
    workers = chief + _addresses(jobs.get("worker", []), "worker")
    if not workers:
        raise _refused("TF_CONFIG.cluster", jobs, "names no worker")
    for address in workers:
        if workers.count(address) > 1:
            raise _refused("TF_CONFIG.cluster", workers, f"has the address {address} twice")
    task = _object(config.get("task"), "TF_CONFIG.task")
    kind, index = task.get("type"), task.get("index")
    if kind not in ("worker", "chief") or kind not in jobs:
        known = " or ".join(f'"{job}"' for job in jobs)
        raise _refused("TF_CONFIG.task.type", kind, f"must be {known}, a job of the cluster")
    count = len(chief) if kind == "chief" else len(workers) - len(chief)
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        raise _refused("TF_CONFIG.task.index", index, f"must be a whole number from 0 to {count - 1}")
    return Cluster(tuple(workers), index if kind == "chief" else index + len(chief))


def _addresses(value: Any, job: str) -> list[str]:
    name = f"TF_CONFIG.cluster.{job}"
    if not isinstance(value, list):
        raise _refused(name, value, 'must be a list of "host:port"')
    for i, address in enumerate(value):
        host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
            raise _refused(f"{name}[{i}]", address, 'must be "host:port", with a port from 1 to 65535')
    return list(value)


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refused(name, value, "must be a JSON object" if value is not None else "is missing")
    return value


def _refused(name: str, value: Any, why: str) -> ConfigurationError:
    shown = value if isinstance(value, str) and name == "TF_CONFIG" else json.dumps(value)
    return ConfigurationError(f"`{name}` {why}; it is {shown[:200]}. A whole one looks like {EXAMPLE}.")


def _from_slurm() -> Cluster:
    import tensorflow as tf  # only here: who stands alone needn't wait for it

    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(auto_set_gpu=False)
    try:
        workers = resolver.cluster_spec().as_dict()["worker"]
        _, index = resolver.get_task_info()
    except (KeyError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"this is a Slurm step, but TensorFlow can't tell its cluster ({error}): start workers by `srun`, or set "
            f"`TF_CONFIG` for each, such as {EXAMPLE}."
        ) from error
    return Cluster(tuple(workers), int(index))
