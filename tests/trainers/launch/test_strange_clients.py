"""A stranger's TensorFlow client at a worker's port: admitted if the port is open, rejected if `launch` closed it."""

import json
import signal
import socket
import subprocess
import time

import pytest

from core.cluster.addresses import local_addresses
from tests import ports
from tests.commands import CONFIGS, environment
from tests.trainers.launch.launch_lab import planted
from tests.trainers.launch.test_network import reached
from trainers.launch import network

STRANGER = """
import signal, sys
signal.alarm(60)
import tensorflow as tf
with tf.Graph().as_default():
    written = tf.io.write_file(sys.argv[2], "written by a stranger")
    settings = tf.compat.v1.ConfigProto(operation_timeout_in_ms=5000)
    with tf.compat.v1.Session(f"grpc://{sys.argv[1]}", config=settings) as session:
        session.run(written)
"""


SERVER = """
import sys
import tensorflow as tf
tf.distribute.Server({"worker": [sys.argv[1]]}, job_name="worker", task_index=0)
print("serves", flush=True)
sys.stdin.read()
"""

# `trainers.launch`, whose workers are forks, in a kernel that refuses it the given system calls.
LAUNCH = """
import runpy
import sys
from tests import forked_launch, refusing
place = sys.argv.index("--")
if place > 1:
    refusing.refuse(**dict.fromkeys(sys.argv[1:place], True))
del sys.argv[1 : place + 1]
forked_launch.begin()
runpy.run_module("trainers.launch", run_name="__main__", alter_sys=True)
"""

TELL = """
def tell():
    with open("telling", "w") as file:
        file.write(os.environ["TF_CONFIG"])
    os.rename("telling", "told")
"""


@pytest.fixture
def scripts(tmp_path):
    for name, text in {"stranger": STRANGER, "server": SERVER, "launch": LAUNCH}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.long
def test_the_stranger_of_these_tests_gets_in_where_a_port_is_open(python, scripts):
    with socket.create_server(("127.0.0.1", 0)) as trial:
        address = f"127.0.0.1:{trial.getsockname()[1]}"
    serve = [*python, "server.py", address]
    with subprocess.Popen(
        serve, cwd=scripts, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout.readline() == "serves\n"
        stranger = [*python, "stranger.py", address, "found"]
        subprocess.run(stranger, cwd=scripts, env=environment(), capture_output=True, timeout=120, check=True)
        server.terminate()
    assert (scripts / "found").read_text() == "written by a stranger"


@pytest.mark.long
@pytest.mark.parametrize("refused", [[], ["namespaces"]], ids=["a network of their own", "guards"])
def test_a_stranger_s_tensorflow_gets_into_no_launched_worker(refused, python, scripts):
    others = [address for address in local_addresses() if not address.is_loopback]
    names = [f"[{each}]" if each.version == 6 else str(each) for each in others if "%" not in str(each)][:1]
    hook = planted(scripts, "time.sleep(0.1) if is_chief() else tell()", every=10, outside=TELL)
    run = ["--workers=2", *ports.flags(), "--", hook]
    run += [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", "runtime/multi_worker")]
    run += ["--gin_param=Trainer.steps = 100000", "--workdir=run"]
    process = subprocess.Popen(
        [*python, "launch.py", *refused, "--", *run],
        cwd=scripts, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        first = process.stdout.readline()
        print(f"this run: {first}strangers at: {names}")
        until = time.monotonic() + 120
        while not (scripts / "told").exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        port = int(json.loads((scripts / "told").read_text())["cluster"]["worker"][1].rpartition(":")[2])
        closed_to_all = first.strip() == network.ALONE
        if ports.way().startswith("ports: "):
            assert [x for x in reached(port) if closed_to_all or x not in ("127.0.0.1", "::1")] == []
            for name in names + (["127.0.0.1"] if closed_to_all else []):
                stranger = [*python, "stranger.py", f"{name}:{port}", "found"]
                subprocess.run(stranger, cwd=scripts, env=environment(), capture_output=True, check=False)
                assert not (scripts / "found").exists()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 75  # it kept running all the time
