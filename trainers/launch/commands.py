"""Commands of a local cluster: `trainers.main` with the environment of each task."""

import dataclasses
import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence

from core.cluster.handshake import TOKEN
from core.cluster.other_users import OPEN_PORTS
from trainers.launch.network import Network
from trainers.launch.processes import Command


def worker_commands(workers: int, main_flags: Sequence[str], network: Network) -> list[Command]:
    """Returns a command for each worker of a new cluster on 127.0.0.1, with a new secret token."""
    return list(_commands({"worker": workers}, main_flags, network).values())


def served_commands(workers: int, servers: int, main_flags: Sequence[str], network: Network) -> list[Command]:
    """Returns commands for a chief and its parameter servers and workers. The others continue if a worker fails."""
    commands = _commands({"chief": 1, "ps": servers, "worker": workers}, main_flags, network)
    chief, *others = commands.items()
    return [
        dataclasses.replace(chief[1], name="chief"),
        *(dataclasses.replace(command, follows=True, spare=job == "worker") for (job, _), command in others),
    ]


def _commands(counts: Mapping[str, int], main_flags: Sequence[str], network: Network) -> dict[tuple[str, int], Command]:
    """Returns {(job, index): command} for a cluster with `counts`, {job: number of tasks}."""
    ports, token = iter(free_ports(sum(counts.values()))), secrets.token_hex(32)
    cluster = {job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in counts.items()}
    return {
        (job, i): Command(
            f"{job} {i}",
            [sys.executable, "-m", "trainers.main", *main_flags],
            {
                **os.environ,
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": i}}),
                TOKEN: token,
                OPEN_PORTS: "1",  # `choose_network` handles the ports
                "PYTHONUNBUFFERED": "1",  # prints lines at once, and loses none of a killed worker
            },
            network.enter,
        )
        for job, count in counts.items()
        for i in range(count)
    }


def free_ports(count: int) -> list[int]:
    """Finds distinct ports that are free on all addresses."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
