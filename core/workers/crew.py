"""Who this process is in asynchronous training: the chief, who hands out steps; a worker; or a server of variables.

>>> cluster = '{"chief": ["a:2222"], "worker": ["b:2222"], "ps": ["c:2222"]}'
>>> crew_from_environment({"TF_CONFIG": '{"cluster": %s, "task": {"type": "ps", "index": 0}}' % cluster}).task
('ps', 0)
"""

import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from core.errors import ConfigurationError, PeerLostError
from core.workers.addresses import host_and_port
from core.workers.cluster import addresses_of, object_of, parsed, refused

if TYPE_CHECKING:
    import tensorflow as tf  # whoever only launches needn't wait for it

JOBS = ("chief", "worker", "ps")
_BETWEEN_CALLS_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Crew:
    """Holds the addresses of all processes by their job, and which of them is this one."""

    addresses: Mapping[str, tuple[str, ...]]
    task: tuple[str, int]

    @property
    def is_chief(self) -> bool:
        """Says whether this process hands out the steps."""
        return self.task[0] == "chief"

    @property
    def spec(self) -> dict[str, list[str]]:
        """Returns the crew as TensorFlow wants it."""
        return {job: list(found) for job, found in self.addresses.items()}


def crew_from_environment(environment: Mapping[str, str] | None = None) -> Crew | None:
    """Returns the crew that this process belongs to; `None` where `TF_CONFIG` names no parameter server."""
    text = (os.environ if environment is None else environment).get("TF_CONFIG")
    if not text:
        return None
    config = parsed(text)
    jobs = object_of(config, "cluster")
    if not addresses_of(jobs, "ps"):
        return None
    for job in JOBS:
        found = addresses_of(jobs, job)
        if not found or (job == "chief" and len(found) > 1):
            why = "beside parameter servers there must be one chief, and at least one worker"
            raise refused(f"TF_CONFIG.cluster.{job}", found, why)
    task = object_of(config, "task")
    own, index = task.get("type"), task.get("index")
    if own not in JOBS:
        raise refused("TF_CONFIG.task.type", own, f"must be one of {', '.join(JOBS)}")
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(jobs[own]):
        raise refused("TF_CONFIG.task.index", index, f"must be a place in `TF_CONFIG.cluster.{own}`")
    return Crew({job: tuple(jobs[job]) for job in JOBS}, (own, index))


def connect_servers(deadline: float) -> "tf.train.ClusterSpec":
    """Waits, in the chief, until all workers and servers answer; returns where everybody is.

    Who doesn't within `deadline` seconds is named: TensorFlow itself would wait for them without end.
    """
    import tensorflow as tf

    crew = crew_from_environment()
    if crew is None or not crew.is_chief:
        raise ConfigurationError(
            "`parameter_server` finds no servers: `TF_CONFIG` names no `ps`, or this process isn't the `chief`. Start "
            "all of them by `python -m trainers.launch --workers=2 --ps=1 -- ...`."
        )
    until = time.monotonic() + deadline
    missing = [(job, i) for job in ("ps", "worker") for i in range(len(crew.addresses[job]))]
    while missing := [(job, i) for job, i in missing if not _answers(crew.addresses[job][i])]:
        if time.monotonic() > until:
            names = ", ".join(f"{job} {i} ({crew.addresses[job][i]})" for job, i in missing)
            raise PeerLostError(
                f"{names} didn't answer within `parameter_server.meeting_deadline` = {deadline:g} s. See why not in "
                "what it printed, and start all of them again."
            )
        time.sleep(_BETWEEN_CALLS_SECONDS)
    return tf.train.ClusterSpec(crew.spec)


def _answers(address: str) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(host_and_port(address), timeout=1.0).close()
        return True
    return False
