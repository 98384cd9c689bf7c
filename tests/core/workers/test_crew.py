"""Who hands out steps, who takes them, who serves; and a chief that doesn't wait for ever."""

import json
import socket

import pytest

from core.errors import ConfigurationError, PeerLostError
from core.workers.crew import connect_servers, crew_from_environment

CREW = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def config(cluster=CREW, job="chief", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}


def test_without_servers_there_is_no_crew():
    assert crew_from_environment({}) is None
    assert crew_from_environment(config({"worker": ["a:1"]}, "worker")) is None


def test_each_knows_its_task():
    crew = crew_from_environment(config(job="worker", index=1))
    assert (crew.task, crew.is_chief, crew.spec) == (("worker", 1), False, CREW)
    assert crew_from_environment(config()).is_chief


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (config({**CREW, "worker": []}), "`TF_CONFIG.cluster.worker` is []"),
        (config({**CREW, "chief": []}), "`TF_CONFIG.cluster.chief` is []"),
        (config({**CREW, "chief": ["a:1", "b:2"]}), "one chief"),
        (config({**CREW, "ps": ["a"]}), "`TF_CONFIG.cluster.ps[0]`"),
        (config(job="evaluator"), '`TF_CONFIG.task.type` is "evaluator"'),
        (config(job="ps", index=1), "`TF_CONFIG.task.index` is 1"),
        (config(index=True), "`TF_CONFIG.task.index` is true"),
    ],
)
def test_what_is_no_crew_is_refused(environment, says):
    with pytest.raises(ConfigurationError) as caught:
        crew_from_environment(environment)
    assert says in str(caught.value)


def test_who_does_not_come_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        here, missing = (f"127.0.0.1:{each.getsockname()[1]}" for each in (there, gone))
        gone.close()
        cluster = {"chief": ["127.0.0.1:1"], "worker": [here], "ps": [here, missing]}
        monkeypatch.setenv("TF_CONFIG", config(cluster)["TF_CONFIG"])
        with pytest.raises(PeerLostError, match=rf"^ps 1 \({missing}\) didn't answer within .* = 0.3 s"):
            connect_servers(0.3)


@pytest.mark.parametrize("environment", [{}, config(job="worker")])
def test_only_a_chief_connects(monkeypatch, environment):
    monkeypatch.setenv("TF_CONFIG", environment.get("TF_CONFIG", ""))
    with pytest.raises(ConfigurationError, match="`parameter_server` finds no servers"):
        connect_servers(1.0)
