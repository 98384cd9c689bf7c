"""Runs the suite without Keras, and reports how many `long` tests a plain `pytest` leaves out."""

import gc
import os
import random
import sys
from pathlib import Path

import gin
import pytest

from tests import memory
from tests.commands import let_children_hear
from tests.deadline import Deadline
from tests.notes import Notes

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tolerances assume exact products, and replicas are virtual CPUs: use `python -m trainers.verify_machine` for GPUs.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TAPELOOP_OPEN_PORTS", "1")  # tests start workers by hand, on machines that people share
sys.modules["keras"] = None  # type: ignore[assignment]
sys.modules["tf_keras"] = None  # type: ignore[assignment]
let_children_hear()


def pytest_configure(config):
    """Makes virtual devices. If the gate asks, records the cost of tests, and begins no long one after a time."""
    given = getattr(config, "workerinput", {})
    if given or not getattr(config.option, "numprocesses", None):  # pytest-xdist's first process needs no TensorFlow
        config.pluginmanager.import_plugin("core.testing.pytest_plugin")
    file = os.environ.pop("TEST_NOTES", None)  # a pytest that a test starts records nothing
    if file or given.get("notes"):
        config.pluginmanager.register(Notes(Path(file) if file else None), "notes")
    deadline = int(os.environ.pop("TEST_DEADLINE", 0)) or given.get("deadline")
    if deadline:
        config.pluginmanager.register(Deadline(deadline), "deadline")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Makes pytest-xdist's workers measure the cost of their process, and keep to the deadline."""
    plugins = node.config.pluginmanager
    node.workerinput["notes"] = plugins.has_plugin("notes")
    node.workerinput["deadline"] = plugins.get_plugin("deadline").deadline if plugins.has_plugin("deadline") else 0


@pytest.fixture(autouse=True)
def _forget_bindings():
    """Clears gin's bindings after each test of the process."""
    yield
    gin.clear_config()


@pytest.fixture
def chance():
    """Returns random numbers from a new seed each time, which a failure prints and `TEST_SEED` repeats."""
    seed = int(os.environ.get("TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"repeat this with `TEST_SEED={seed}`")
    return random.Random(seed)


@pytest.fixture
def server(request):
    """Returns a server of object storage: S3, or what an indirect parameter says."""
    from tests.storage_server import serving  # few tests need it

    with serving(getattr(request, "param", "s3")) as server:
        yield server


@pytest.fixture
def storage(server, monkeypatch):
    """Returns the server. The variables of this process point to it."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Puts tests that wait first, beside which others compute, and the cases of a test in the order of their names.

    pytest-xdist runs nothing if two of its workers collect in different orders, as they do with sets.
    """
    first = {}
    for item in items:
        first.setdefault(item.nodeid.partition("[")[0], len(first))

    def place(item):
        return not item.get_closest_marker("waits"), first[item.nodeid.partition("[")[0]], item.nodeid

    items.sort(key=place)


def pytest_collection_finish():
    """Freezes imported objects for the garbage collector, and makes it collect less often.

    A worker has imported TensorFlow, JAX and all tests, about a million objects. Tracing allocates enough to cause many
    full collections, each of which would visit them all.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Frees a test file's memory before the next file, and that of tests that use much before the next one.

    A cache that outlives its file lives until the process ends: later collections don't visit it.
    """
    ended = nextitem is None or nextitem.path != item.path
    if ended or memory.grown():
        memory.release()
    if ended:
        gc.freeze()


LEFT_OUT = pytest.StashKey[int]()
PORTS = pytest.StashKey[str]()


def pytest_deselected(items):
    long = sum(item.get_closest_marker("long") is not None for item in items)
    if long:
        items[0].config.stash[LEFT_OUT] = long


def pytest_sessionfinish(session):
    """Records how `trainers.launch` closed ports, if a test asked."""
    ports = sys.modules.get("tests.ports")
    if ports and ports.way.cache_info().currsize:
        session.config.stash[PORTS] = ports.way()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["ports"] = session.config.stash.get(PORTS, "")
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Counts the left-out tests of one pytest-xdist worker: all of them collect the same tests."""
    node.config.stash[PORTS] = getattr(node, "workeroutput", {}).get("ports") or node.config.stash.get(PORTS, "")
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter, config):
    if way := config.stash.get(PORTS, ""):
        terminalreporter.write_line(f"launched workers here: {way}")
    if long := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{long} long tests left out: `pytest -m long` runs them, `.ci/run` everything")
