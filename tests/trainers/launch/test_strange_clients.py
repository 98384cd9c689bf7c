"""A stranger's TensorFlow client at a worker's port: admitted if the port is open, rejected if `launch` closed it."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from core.cluster.addresses import local_addresses
from tests import ports
from tests.commands import CHECKOUT, CONFIGS, environment
from tests.trainers.launch.test_network import reached
from trainers.launch import network

STRANGER = """
import sys
sys.modules["keras"] = None
import tensorflow as tf
with tf.Graph().as_default():
    written = tf.io.write_file(sys.argv[2], "written by a stranger")
    settings = tf.compat.v1.ConfigProto(operation_timeout_in_ms=5000)
    with tf.compat.v1.Session(f"grpc://{sys.argv[1]}", config=settings) as session:
        session.run(written)
"""


SERVER = """
import sys
sys.modules["keras"] = None
import tensorflow as tf
tf.distribute.Server({"worker": [sys.argv[1]]}, job_name="worker", task_index=0)
print("serves", flush=True)
sys.stdin.read()
"""


@pytest.mark.long
def test_the_stranger_of_these_tests_gets_in_where_a_port_is_open(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as trial:
        address = f"127.0.0.1:{trial.getsockname()[1]}"
    serve = [sys.executable, "-c", SERVER, address]
    with subprocess.Popen(serve, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "serves\n"
        stranger = [sys.executable, "-c", STRANGER, address, str(tmp_path / "stranger")]
        subprocess.run(stranger, env=environment(), capture_output=True, timeout=120, check=True)
        server.kill()
    assert (tmp_path / "stranger").read_text() == "written by a stranger"


@pytest.mark.long
@pytest.mark.parametrize("refused", [[], ["namespaces"]], ids=["a network of their own", "guards"])
def test_a_stranger_s_tensorflow_gets_into_no_launched_worker(refused, tmp_path):
    others = [address for address in local_addresses() if not address.is_loopback]
    names = [f"[{each}]" if each.version == 6 else str(each) for each in others if "%" not in str(each)][:1]
    run = [sys.executable, "-m", "trainers.launch", "--workers=2", *ports.flags(), "--"]
    run += [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_mlp", "runtime/multi_worker")]
    run += ["--gin_param=steps = 100000", "--workdir=run"]
    under = [sys.executable, str(CHECKOUT / "tests" / "refusing.py"), *refused, "--"] if refused else []
    process = subprocess.Popen(
        under + run, cwd=tmp_path, env={**environment()}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        first = process.stdout.readline()
        print(f"this run: {first}strangers at: {names}")
        started = process.stdout.readline()
        worker = int(re.findall(r"process (\d+)", started)[1])
        said = threading.Thread(target=process.stdout.read, daemon=True)
        said.start()
        until = time.monotonic() + 120
        while not list((tmp_path / "run" / "checkpoints").glob("step-*")):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        told = dict(x.split("=", 1) for x in Path(f"/proc/{worker}/environ").read_text().split("\0") if "=" in x)
        address = json.loads(told["TF_CONFIG"])["cluster"]["worker"][1]
        port = int(address.rpartition(":")[2])
        closed_to_all = first.strip() == network.ALONE
        if ports.way().startswith("ports: "):
            assert [x for x in reached(port) if closed_to_all or x not in ("127.0.0.1", "::1")] == []
            for name in names + (["127.0.0.1"] if closed_to_all else []):
                stranger = [sys.executable, "-c", STRANGER, f"{name}:{port}", str(tmp_path / "stranger")]
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(stranger, env=environment(), capture_output=True, timeout=60, check=False)
                assert not (tmp_path / "stranger").exists()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 75  # it kept running all the time
