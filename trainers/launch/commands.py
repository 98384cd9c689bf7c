"""The commands of a cluster on this machine: `trainers.main` for all, each with a place of its own."""

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
    """Returns one for each worker, in a new cluster on 127.0.0.1, which has a new token."""
    return list(_commands({"worker": workers}, main_flags, network).values())


def served_commands(workers: int, servers: int, main_flags: Sequence[str], network: Network) -> list[Command]:
    """Returns one for a chief, and for the servers and workers that follow it, of which any worker can be spared."""
    commands = _commands({"chief": 1, "ps": servers, "worker": workers}, main_flags, network)
    chief, *others = commands.items()
    return [
        dataclasses.replace(chief[1], name="chief"),
        *(dataclasses.replace(command, follows=True, spare=job == "worker") for (job, _), command in others),
    ]


def _commands(counts: Mapping[str, int], main_flags: Sequence[str], network: Network) -> dict[tuple[str, int], Command]:
    """Returns one for each place in each job."""
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
                OPEN_PORTS: "1",  # `choose_network` has closed them, or was told not to
                "PYTHONUNBUFFERED": "1",  # lines appear when they are printed, and a killed worker's aren't lost
            },
            network.enter,
        )
        for job, count in counts.items()
        for i in range(count)
    }


def free_ports(count: int) -> list[int]:
    """Finds different ports that nobody listens on now, at whichever address."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
