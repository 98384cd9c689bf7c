"""On a machine with other users, no worker opens its port to them without consent."""

import os
import pwd
import subprocess
import sys
import types

import pytest

from core.cluster import membership, other_users
from core.cluster.topology import Cluster
from core.errors import ConfigurationError
from tests.commands import CHECKOUT, CONFIGS, environment
from trainers.launch import network

ACCOUNTS = {
    1000: ("alice", "/bin/bash"),
    1001: ("munge", "/sbin/nologin"),
    1002: ("bob", "/usr/bin/zsh"),
    101: ("messages", "/bin/sh"),
    0: ("root", "/bin/bash"),
}


def account(uid):
    name, shell = ACCOUNTS[uid]
    return types.SimpleNamespace(pw_name=name, pw_shell=shell)


@pytest.fixture
def at_work(monkeypatch):
    """Makes processes of these users run; this process is bob's."""

    def at_work(*users):
        monkeypatch.setattr(other_users, "_users", lambda: set(users))
        monkeypatch.setattr(pwd, "getpwuid", account)
        monkeypatch.setattr(os, "getuid", lambda: 1002)
        monkeypatch.setattr(os, "geteuid", lambda: 1002)
        monkeypatch.delenv(other_users.OPEN_PORTS, raising=False)

    return at_work


@pytest.mark.parametrize(
    ("users", "found"),
    [
        ([0, 1002], []),
        ([0, 101, 1001, 1002], []),  # services
        ([0, 1000, 1002], ["alice"]),
        ([100_123, 1002], []),  # a container's user, without a name here
    ],
)
def test_people_are_other_users_who_can_log_in(users, found, at_work):
    at_work(*users)
    assert other_users.people_here() == found


def test_users_of_this_machine_s_processes_hold_this_one_s():
    assert os.geteuid() in other_users._users()


def test_worker_by_hand_is_refused_before_it_meets_anyone_where_people_are_at_work(at_work):
    at_work(0, 1000, 1002)
    with pytest.raises(ConfigurationError) as caught:
        membership.become(Cluster(("127.0.0.1:1", "127.0.0.1:2"), 0), lambda token: pytest.fail("it met the others"))
    said = str(caught.value)
    assert "open to other users of this machine (alice at work now)" in said
    assert "python -m trainers.launch" in said
    assert "`TAPELOOP_OPEN_PORTS=1`" in said


@pytest.mark.parametrize(
    ("users", "said", "refused"),
    [([0, 1002], "", False), ([1000], "1", False), ([1000], "", True), ([1000], "0", True)],
)
def test_consent_is_asked_for_where_people_are_at_work(users, said, refused, at_work):
    at_work(*users)
    if refused:
        with pytest.raises(ConfigurationError):
            other_users.check_consent({other_users.OPEN_PORTS: said})
    else:
        other_users.check_consent({other_users.OPEN_PORTS: said})


def test_guards_alone_are_not_enough_for_launch_where_people_are_at_work(at_work, monkeypatch):
    def refused():
        raise OSError(1, "Operation not permitted")

    at_work(1000)
    monkeypatch.setattr(network, "loopback_alone", refused)
    monkeypatch.setattr(network, "prove_guards", lambda: None)
    with pytest.raises(ConfigurationError, match=r"(?s)alice at work now.*Operation not permitted.*`--open_ports`"):
        network.choose_network(open_ports=False)
    assert network.choose_network(open_ports=True).line.startswith("Warning: ")
    at_work(0)
    assert network.choose_network(open_ports=False).line.startswith(network.GUARDED)


@pytest.mark.long
@pytest.mark.parametrize(
    "place", [{"type": "worker", "index": 0}, {"type": "ps", "index": 0}], ids=["worker", "server"]
)
def test_command_by_hand_ends_with_2_where_people_are_at_work(place, tmp_path):
    jobs = ["worker", "chief", "ps"] if place["type"] == "ps" else ["worker"]
    cluster = {job: [f"127.0.0.1:{1024 + i}"] for i, job in enumerate(jobs)}
    runtime = "parameter_server" if place["type"] == "ps" else "multi_worker"
    code = (
        "import sys; from core.cluster import other_users; other_users.people_here = lambda: ['alice']\n"
        f"sys.argv[1:] = ['--gin_file={CONFIGS}/digits_mlp.gin', '--gin_file={CONFIGS}/runtime/{runtime}.gin']\n"
        "from trainers.main import main; sys.exit(main(sys.argv[1:]))"
    )
    told = {**environment(), "TF_CONFIG": repr({"cluster": cluster, "task": place}).replace("'", '"')}
    told.pop(other_users.OPEN_PORTS)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**told, "PYTHONPATH": f"{CHECKOUT}:{told['PYTHONPATH']}"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(
        "error: this worker's port would be open to other users of this machine (alice at work"
    )
