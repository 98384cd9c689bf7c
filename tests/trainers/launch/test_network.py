"""No other user reaches a launched worker's port: real connections, also on more restricted machines."""

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys

import pytest

from core.cluster.addresses import at, local_addresses
from core.errors import ConfigurationError
from tests import ports
from tests.commands import CHECKOUT, CONFIGS, one_paragraph, python
from tests.trainers.launch.launch_lab import PATIENCE, gone
from trainers.launch import __main__ as command
from trainers.launch import network
from trainers.launch.processes import Command
from trainers.launch.supervise import supervise

# A worker that listens as TensorFlow does, everywhere, and reports whether it reaches itself and the given address.
SERVES = """
import socket, sys, time
listener = socket.create_server(("", 0))
port = listener.getsockname()[1]
def reaches(host, port):
    with socket.socket() as knock:
        knock.settimeout(1.0)
        return knock.connect_ex((host, port)) == 0
print("serves", port, reaches("127.0.0.1", port), reaches("127.0.0.1", int(sys.argv[1])), flush=True)
time.sleep(100)
"""


@pytest.fixture
def alone():
    """Returns a command prefix that starts a process in a network of loopback only; empty if this machine refuses."""
    try:
        return network.loopback_alone()
    except OSError as error:
        print(f"no network of their own on this machine: {error}; it launches with: {ports.way()}")
        return None


@contextlib.contextmanager
def served(enter):
    with socket.create_server(("", 0)) as outside:
        command = [sys.executable, "-S", "-c", SERVES, str(outside.getsockname()[1])]
        process = subprocess.Popen(command, preexec_fn=enter, stdout=subprocess.PIPE, text=True)
        try:
            yield process.stdout.readline().split()
        finally:
            process.kill()
            process.communicate()


def reached(port):
    found = []
    for address in local_addresses():
        family, place = at(address, port)
        with socket.socket(family) as knock:
            knock.settimeout(0.5)
            if knock.connect_ex(place) == 0:
                found.append(str(address))
    return found


def test_worker_in_a_separate_network_reaches_only_itself(alone):
    with served(lambda: None) as (_, port, itself, others):
        assert (itself, others) == ("True", "True")
        assert "127.0.0.1" in reached(int(port))
    if alone is not None:
        with served(alone) as (_, port, itself, others):
            assert (itself, others) == ("True", "False")
            assert reached(int(port)) == []


def test_network_is_made_without_root_and_keeps_the_user(alone, monkeypatch):
    """The way without privileges, also if the tests run as root: the shorter one is refused there."""
    if alone is None:
        return
    made = network._made

    def refused(kinds):
        if kinds == network.CLONE_NEWNET:
            raise PermissionError(1, "Operation not permitted")
        return made(kinds)

    monkeypatch.setattr(network, "_made", refused)
    try:
        enter = network.loopback_alone()
    except OSError as error:
        print(f"this machine makes no user namespaces: {error}")
        return
    with served(enter) as (_, port, itself, others):
        assert (itself, others) == ("True", "False")
        assert reached(int(port)) == []
    who = [sys.executable, "-S", "-c", "import os; print(os.getuid(), os.geteuid(), os.getgid())"]
    said = subprocess.run(who, preexec_fn=enter, capture_output=True, text=True, check=True).stdout.split()
    assert said == [str(x) for x in (os.getuid(), os.geteuid(), os.getgid())]


AS_NOBODY = """
import encodings.idna, os, socket  # all before the change of user, who may not be let into Python's own folders
from trainers.launch import network
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
network.LIBC.prctl(4, 1)  # PR_SET_DUMPABLE: as in a process that was started by that user
try:
    enter = network.loopback_alone()
except OSError as error:
    raise SystemExit(print("refused by the system:", error))
pid = os.fork()
if pid == 0:
    enter()
    with socket.create_server(("", 0)) as listener, socket.create_connection(("127.0.0.1", listener.getsockname()[1])):
        print("alone as", os.getuid(), os.geteuid(), os.getgid(), sorted(name for _, name in socket.if_nameindex()))
else:
    os.waitpid(pid, 0)
"""


def test_network_of_their_own_is_made_by_users_without_rights(tmp_path):
    """The same for a user without privileges; if this user isn't root, every other test here already is such a case."""
    if os.geteuid() != 0:
        return
    command = [sys.executable, "-S", "-c", AS_NOBODY]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if "refused by the system" in done.stdout:
        print(f"this machine makes no user namespaces for others than root: {done.stdout}")
        return
    assert done.returncode == 0, done.stderr
    assert done.stdout == "alone as 65534 65534 65534 ['lo']\n"


def test_workers_in_a_network_of_their_own_do_not_outlive_a_launcher_that_is_killed(alone):
    launcher = (
        "import subprocess, sys, time\n"
        "from trainers.launch.processes import *\n"
        "from trainers.launch.network import choose_network\n"
        "enter = choose_network(open_ports=False).enter\n"
        "command = Command('worker 0', [sys.executable, '-S', '-c', 'import time; time.sleep(100)'], {}, enter)\n"
        "with selectors.DefaultSelector() as selector:\n"
        "    print(Process(0, command, selector, sys.stdout.buffer, sys.stderr.buffer).pid, flush=True)\n"
        "    time.sleep(100)\n"
    ).replace("import *", "import Process, Command, selectors")
    process = subprocess.Popen([sys.executable, "-c", launcher], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()
    assert gone(pid)


# --- which way --------------------------------------------------------------------------------------------------------


def chosen(*refused, open_ports=False):
    """Returns the line or the refusal on a machine that refuses these; the kernel itself refuses."""
    code = (
        "from core.errors import ConfigurationError\n"
        "from trainers.launch.network import choose_network\n"
        f"try: print(choose_network(open_ports={open_ports}).line)\n"
        "except ConfigurationError as error: print('refused:', error)\n"
    )
    command = [sys.executable, "-m", "tests.refusing", *refused, "--", sys.executable, "-c", code]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.long
def test_network_is_the_safest_that_a_machine_allows():
    print(f"this machine: {ports.way()}")
    assert "open to all who reach this machine" in chosen("namespaces", "guards", open_ports=True)
    if ports.way().startswith("ports: "):
        assert chosen("namespaces").startswith((network.GUARDED, "refused: "))
    if ports.way() == network.ALONE:
        assert chosen("guards").strip() == network.ALONE


def test_a_machine_that_allows_no_way_is_refused_with_2_before_anything_starts(tmp_path):
    command = [sys.executable, "-m", "trainers.launch", "--workers=2", "--", "--gin_file=none.gin"]
    done = python("-m", "tests.refusing", "namespaces", "guards", "--", *command, cwd=CHECKOUT)
    assert (done.returncode, done.stdout) == (2, "")
    one_paragraph(
        done.stderr, "error: the workers' ports can't be closed to others", "--network=none", "`--open_ports`"
    )


# --- a real run, and a real client of TensorFlow's --------------------------------------------------------------------


def test_worker_is_not_started_in_the_open(tmp_path):
    """A network that can't be entered any more ends the start, and leaves no worker in the open."""

    def enter():
        raise OSError(1, "Operation not permitted")

    command = Command("worker 0", [sys.executable, "-S", "-c", f"open({str(tmp_path / 'started')!r}, 'w')"], {}, enter)
    with pytest.raises(subprocess.SubprocessError):
        supervise(lambda: [command], max_restarts=0, deadline=PATIENCE, out=io.BytesIO(), err=io.BytesIO())
    assert not (tmp_path / "started").exists()


def test_ports_are_opened_on_demand_alone(monkeypatch):
    def refused():
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(network, "loopback_alone", refused)
    monkeypatch.setattr(network, "prove_guards", refused)
    with pytest.raises(ConfigurationError, match="`--open_ports` if a firewall closes them"):
        network.choose_network(open_ports=False)
    assert network.choose_network(open_ports=True).line.startswith("Warning: ")


def test_new_network_whose_maker_is_killed_is_refused_and_not_waited_for(monkeypatch):
    monkeypatch.setattr(network, "_unshare", lambda kinds: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(OSError, match=os.strerror(4)):
        network._made(network.CLONE_NEWNET)


def test_network_that_workers_may_not_enter_ends_launch_with_a_paragraph(monkeypatch, capsys):
    def enter():
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(command, "choose_network", lambda **_: network.Network(enter, "ports: as it is"))
    assert command.main(["--workers=1", "--", f"--gin_file={CONFIGS / 'digits_mlp.gin'}"]) == 2
    assert "error: can't start the workers or read their output" in capsys.readouterr().err
