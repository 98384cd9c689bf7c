"""The command as a parameter server: it starts for its chief, and ends with it."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.checkpoint.versions import versions
from core.cluster.channel import Channel
from core.cluster.port_check import knock
from core.cluster.rendezvous import ask
from tests.commands import fork_server
from trainers.launch.commands import free_ports

TOKEN = "between us"
LONG = 60.0


@pytest.fixture
def cluster():
    jobs = ("chief", "ps", "worker")
    return {job: [f"127.0.0.1:{port}"] for job, port in zip(jobs, free_ports(3), strict=True)}


def serve(cluster, *flags, cwd):
    """Runs the command as a server, which ignores the configuration."""
    arguments = {"cluster": cluster, "job": "ps", "index": 0, "token": TOKEN}
    before = {"module": "tests.served.role", "arguments": arguments}
    return fork_server().run("--gin_file=not_there.gin", *flags, cwd=cwd, timeout=LONG, before=before)


def called(cluster):
    """Connects to the server as its chief does."""
    hello = {"workers": [address for places in cluster.values() for address in places], "about": versions()}
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            channel = Channel(knock(cluster["ps"][0]))
            assert ask(channel, hello, TOKEN, until, until) == ""
            return channel
        time.sleep(0.05)
    raise AssertionError("nobody serves")


@pytest.mark.parametrize(("goodbye", "code"), [({"bye": None}, 0), (None, 6)])
def test_server_serves_until_its_chief_says_goodbye_or_is_gone(cluster, goodbye, code, tmp_path):
    with ThreadPoolExecutor() as pool:
        end = pool.submit(serve, cluster, cwd=tmp_path)
        chief = called(cluster)
        with contextlib.closing(knock(cluster["ps"][0])) as other:
            assert other.recv(9)[3] == 4  # a frame of SETTINGS: TensorFlow's server speaks HTTP/2 there
        if goodbye:
            chief.send(goodbye)
        chief.shutdown_write()
        done = end.result(LONG)
    assert done.returncode == code, done.stderr
    assert f"ps 0 ({cluster['ps'][0]}) serves the chief ({cluster['chief'][0]})\n" in done.stdout
    assert ("error: the chief" in done.stderr) == (goodbye is None)
    assert not list(tmp_path.iterdir())


def test_server_keeps_native_stderr_in_a_workdir_that_exists(cluster, tmp_path):
    (tmp_path / "run").mkdir()
    with ThreadPoolExecutor() as pool:
        end = pool.submit(serve, cluster, "--workdir=run", cwd=tmp_path)
        chief = called(cluster)
        chief.send({"bye": None})
        chief.shutdown_write()
        assert end.result(LONG).returncode == 0
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["native_stderr_ps_0.log"]


def test_place_without_a_port_is_refused(cluster, tmp_path):
    done = serve({**cluster, "ps": ["p"]}, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith('error: `TF_CONFIG.cluster.ps[0]` is "p"')
