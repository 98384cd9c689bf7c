"""`TF_CONFIG` and Slurm's variables identify a worker; errors name wrong ones."""

import json
import os
import subprocess
import sys

import pytest

from core.cluster import membership
from core.cluster.topology import Cluster, cluster_from_environment
from core.errors import ConfigurationError

TWO = ["a:1000", "b:2000"]


def config(cluster=None, task=None):
    whole = {"cluster": cluster or {"worker": TWO}, "task": task or {"type": "worker", "index": 1}}
    return {"TF_CONFIG": json.dumps(whole)}


def refusal(environment):
    with pytest.raises(ConfigurationError) as caught:
        cluster_from_environment(environment)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_process_alone_has_no_cluster():
    assert cluster_from_environment({}) is None
    assert cluster_from_environment({"TF_CONFIG": ""}) is None
    assert cluster_from_environment({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}) is None
    assert cluster_from_environment({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert cluster_from_environment({"SLURM_JOB_ID": "7"}) is None


def test_the_process_s_own_environment_is_asked_by_default(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config()["TF_CONFIG"])
    assert cluster_from_environment() == Cluster(("a:1000", "b:2000"), 1)


# --- TF_CONFIG --------------------------------------------------------------------------------------------------------


def test_workers_are_numbered_as_listed():
    cluster = cluster_from_environment(config())
    assert cluster == Cluster(("a:1000", "b:2000"), 1)
    assert (cluster.size, cluster.address, cluster.is_chief) == (2, "b:2000", False)


def test_a_chief_comes_first():
    cluster = {"chief": ["c:1"], "worker": TWO}
    assert cluster_from_environment(config(cluster)) == Cluster(("c:1", *TWO), 2)
    chief = cluster_from_environment(config(cluster, {"type": "chief", "index": 0}))
    assert chief.is_chief
    assert chief.spec == {"worker": ["c:1", *TWO]}


SERVED = {"chief": ["c:1"], "worker": TWO, "ps": ["p:1"]}


@pytest.mark.parametrize(
    ("task", "index", "name"),
    [(("chief", 0), 0, "the chief (c:1)"), (("ps", 0), 1, "ps 0 (p:1)"), (("worker", 1), 3, "worker 1 (b:2000)")],
)
def test_servers_make_it_a_cluster_of_another_kind(task, index, name):
    cluster = cluster_from_environment(config(SERVED, dict(zip(("type", "index"), task, strict=True))))
    assert (cluster.workers, cluster.index, cluster.name(index)) == (("c:1", "p:1", *TWO), index, name)
    assert (cluster.job, cluster.place) == task
    assert (cluster.is_chief, cluster.size) == (index == 0, 1)
    assert cluster.spec == SERVED


def test_equal_workers_have_no_servers(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config(SERVED)["TF_CONFIG"])
    with pytest.raises(ConfigurationError, match=r"`multi_worker` has no parameter servers.*parameter_server\.gin"):
        membership.join(deadline=1.0)


@pytest.mark.parametrize("job", ["worker", "chief"])
def test_one_worker_is_a_cluster_of_one(job):
    cluster = cluster_from_environment(config({job: ["a:1"]}, {"type": job, "index": 0}))
    assert cluster == Cluster(("a:1",), 0)
    assert cluster.size == 1
    assert cluster.is_chief


def test_addresses_of_version_6_stand_in_brackets():
    cluster = {"worker": ["[::1]:1000", "[2001:db8::2]:1000"]}
    assert cluster_from_environment(config(cluster)).address == "[2001:db8::2]:1000"
    assert "worker[0]` is" in refusal(config({"worker": ["::1:1000"]}))


def test_further_fields_are_others_affair():
    whole = json.loads(config()["TF_CONFIG"]) | {"environment": "cloud", "rpc_layer": "grpc"}
    assert cluster_from_environment({"TF_CONFIG": json.dumps(whole)}).index == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "`TF_CONFIG` is not JSON (Expecting"),
        ("{", "it is '{'"),
        ("[" * 100_000, "`TF_CONFIG` is not JSON"),
        ('{"cluster": ' + "[" * 900 + "]" * 900 + "}", "`TF_CONFIG.cluster` is [[["),
        ('{"cluster": {"worker": ["\\ud800:1"]}, "task": {}}', '`TF_CONFIG.cluster.worker[0]` is "\\ud800:1"'),
        ("[]", "`TF_CONFIG` is []: must be a JSON object"),
        ("3", "`TF_CONFIG` is 3: must be a JSON object"),
        ("{}", "`TF_CONFIG.cluster` is missing: must be a JSON object"),
        ('{"cluster": null}', "`TF_CONFIG.cluster` is null: must be a JSON object"),
        (json.dumps({"cluster": {"worker": TWO}}), "`TF_CONFIG.task` is missing: must be a JSON object"),
        (json.dumps({"cluster": {"worker": TWO}, "task": [0]}), "`TF_CONFIG.task` is [0]: must be a JSON object"),
        (json.dumps({"cluster": {}, "task": {}}), "`TF_CONFIG.cluster.worker` is missing: must name at least one"),
        (json.dumps({"cluster": {"worker": []}}), "`TF_CONFIG.cluster.worker` is []: must name at least one"),
    ],
)
def test_a_malformed_whole_is_refused(text, says):
    said = refusal({"TF_CONFIG": text})
    assert says in said
    assert '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task"' in said


@pytest.mark.parametrize(
    ("cluster", "field", "says"),
    [
        ({"worker": "a:1"}, 'worker` is "a:1"', 'must be a list of "host:port"'),
        ({"worker": TWO, "chief": "c:1"}, 'chief` is "c:1"', 'must be a list of "host:port"'),
        ({"worker": ["a:1", "b"]}, 'worker[1]` is "b"', 'must be "host:port"'),
        ({"worker": ["a:1", "b:"]}, 'worker[1]` is "b:"', 'must be "host:port"'),
        ({"worker": ["a:1", ":2"]}, 'worker[1]` is ":2"', 'must be "host:port"'),
        ({"worker": ["a:1", "b:0"]}, 'worker[1]` is "b:0"', "a port from 1 to 65535"),
        ({"worker": ["a:1", "b:65536"]}, 'worker[1]` is "b:65536"', "a port from 1 to 65535"),
        ({"worker": ["a:1", "b:-1"]}, 'worker[1]` is "b:-1"', "a port from 1 to 65535"),
        ({"worker": ["a:1", "b:²"]}, "worker[1]` is", "a port from 1 to 65535"),
        ({"worker": ["a:1", "b:" + "9" * 5000]}, "worker[1]` is", "a port from 1 to 65535"),
        ({"worker": ["a:1", "grpc://b:2"]}, 'worker[1]` is "grpc://b:2"', 'must be "host:port"'),
        ({"worker": ["a:1", "b c:2"]}, 'worker[1]` is "b c:2"', 'must be "host:port"'),
        ({"worker": ["a:1", 7]}, "worker[1]` is 7", 'must be "host:port"'),
        ({"worker": ["a:1", None]}, "worker[1]` is null", 'must be "host:port"'),
        ({"worker": TWO, "chief": [["c:1"]]}, 'chief[0]` is ["c:1"]', 'must be "host:port"'),
        ({"worker": ["a:1", "b:1", "a:1"]}, 'worker[2]` is "a:1"', "the same address as `TF_CONFIG.cluster.worker[0]`"),
        ({"worker": TWO, "chief": ["b:2000"]}, 'worker[1]` is "b:2000"', "as `TF_CONFIG.cluster.chief[0]`"),
        ({"worker": TWO, "chief": ["c:1", "d:1"]}, 'chief` is ["c:1", "d:1"]', "further ones are workers"),
        ({"worker": TWO, "ps": ["p:1"]}, "chief` is missing", 'the chief, such as "chief": ["host0:2222"]'),
        ({"chief": ["c:1"], "ps": ["p:1"]}, "worker` is missing", "must name at least one address"),
        ({"chief": ["c:1"], "worker": TWO, "ps": ["a:1000"]}, 'worker[0]` is "a:1000"', "TF_CONFIG.cluster.ps[0]`"),
        ({"worker": TWO, "evaluator": ["e:1"]}, "evaluator` is", "`--mode=evaluate_continuously`"),
        ({"worker": TWO, "wroker": ["e:1"]}, "wroker` is", "no job that is known"),
        ({"worker": TWO, "w\x1b[2J": ["e:1"]}, r"w\x1b[2J` is", "no job that is known"),
    ],
)
def test_a_malformed_cluster_is_refused_by_its_field(cluster, field, says):
    said = refusal(config(cluster))
    assert f"`TF_CONFIG.cluster.{field}" in said
    assert says in said
    assert len(said) < 700


@pytest.mark.parametrize(
    ("task", "field", "says"),
    [
        ({"type": "ps", "index": 0}, 'type` is "ps"', 'must be "worker", a job of the cluster'),
        ({"type": "evaluator", "index": 0}, 'type` is "evaluator"', "`--mode=evaluate_continuously`"),
        ({"type": "chief", "index": 0}, 'type` is "chief"', 'must be "worker", a job of the cluster'),
        ({"type": "master", "index": 0}, 'type` is "master"', 'must be "worker"'),
        ({"type": ["worker"], "index": 0}, 'type` is ["worker"]', 'must be "worker"'),
        ({"index": 0}, "type` is missing", 'must be "worker"'),
        ({"type": "worker"}, "index` is missing", "must be a whole number from 0 to 1"),
        ({"type": "worker", "index": None}, "index` is null", "must be a whole number from 0 to 1"),
        ({"type": "worker", "index": "0"}, 'index` is "0"', "must be a whole number from 0 to 1"),
        ({"type": "worker", "index": 0.0}, "index` is 0.0", "must be a whole number from 0 to 1"),
        ({"type": "worker", "index": True}, "index` is true", "must be a whole number from 0 to 1"),
        ({"type": "worker", "index": 2}, "index` is 2", "a place in `TF_CONFIG.cluster.worker`"),
        ({"type": "worker", "index": -1}, "index` is -1", "must be a whole number from 0 to 1"),
    ],
)
def test_a_malformed_task_is_refused_by_its_field(task, field, says):
    said = refusal(config(task=task))
    assert f"`TF_CONFIG.task.{field}" in said
    assert says in said


def test_each_job_counts_for_itself():
    cluster = {"chief": ["c:1"], "worker": TWO}
    assert "index` is 2: must be a whole number from 0 to 1" in refusal(config(cluster, {"type": "worker", "index": 2}))
    assert "index` is 1: must be 0, a place in" in refusal(config(cluster, {"type": "chief", "index": 1}))


def test_nothing_waits_for_tensorflow():
    command = (
        "import sys, types; package = types.ModuleType('core.cluster'); import core; "
        "package.__path__ = [core.__path__[0] + '/cluster']; sys.modules['core.cluster'] = package; "
        "from core.cluster.topology import cluster_from_environment; print(cluster_from_environment().index); "
        "assert 'tensorflow' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], env={**os.environ, **config()}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


# --- Slurm ------------------------------------------------------------------------------------------------------------


def step(**changes):
    """Returns Slurm's variables for rank 2 of three tasks, on n9 and, twice, on n10."""
    variables = {
        "SLURM_JOB_ID": "20007",
        "SLURM_NTASKS": "3",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "n[9-10]",
        "SLURM_STEP_TASKS_PER_NODE": "1,2",
        "SLURM_PROCID": "2",
        "SLURM_LOCALID": "1",
        "SLURMD_NODENAME": "n10",
    }
    changed = variables | {f"SLURM{name}": x for name, x in changes.items()}
    return {name: x for name, x in changed.items() if x is not None}


def test_slurm_s_tasks_are_the_workers_and_each_is_where_it_runs():
    # Host and local index of each rank, in Slurm's default order and cyclically over the hosts.
    block = [("n9", "0"), ("n10", "0"), ("n10", "1")]
    cyclic = [("n10", "0"), ("n9", "0"), ("n10", "1")]
    for distribution in (block, cyclic):
        clusters = [
            cluster_from_environment(step(_PROCID=str(rank), _LOCALID=place, D_NODENAME=host))
            for rank, (host, place) in enumerate(distribution)
        ]
        assert {cluster.workers for cluster in clusters} == {clusters[0].workers}
        assert sorted(clusters[0].workers) == ["n10:10007", "n10:10008", "n9:10007"]
        assert sorted(cluster.index for cluster in clusters) == [0, 1, 2]
        for cluster, (host, place) in zip(clusters, distribution, strict=True):
            assert cluster.address == f"{host}:{10007 + int(place)}"


def test_where_slurm_doesn_t_say_on_which_host_the_rank_is_the_place():
    given = step(D_NODENAME=None, _STEP_NODELIST="n[1-3]", _STEP_TASKS_PER_NODE="1(x3)")
    assert cluster_from_environment(given) == Cluster(("n1:10007", "n2:10007", "n3:10007"), 2)


def test_jobs_that_share_a_machine_don_t_share_ports():
    ports = {cluster_from_environment(step(_JOB_ID=str(job))).address for job in (1, 2, 20_003)}
    assert ports == {"n10:10002", "n10:10003", "n10:10004"}


def test_slurm_is_read_from_what_is_given_and_leaves_the_process_s_environment_alone(monkeypatch):
    for name, value in step(_PROCID="0", _STEP_NODELIST="elsewhere[1-2]").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("PATH", "")  # there is no `scontrol`, and no `nvidia-smi`
    before = dict(os.environ)
    assert cluster_from_environment(step()).address == "n10:10008"
    assert dict(os.environ) == before
    with pytest.raises(ConfigurationError):
        cluster_from_environment(step(_STEP_NODELIST="n[9-"))
    assert dict(os.environ) == before


def test_tf_config_goes_before_slurm():
    assert cluster_from_environment(step() | config()) == Cluster(("a:1000", "b:2000"), 1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"_STEP_NUM_TASKS": None}, ["`SLURM_STEP_NUM_TASKS` is not set", "job 20007", "`srun`"]),
        ({"_STEP_NODELIST": None}, ["`SLURM_STEP_NODELIST` is not set", "`srun`"]),
        ({"_STEP_TASKS_PER_NODE": None}, ["`SLURM_STEP_TASKS_PER_NODE` is not set", "`srun`"]),
        ({"_PROCID": None}, ["`SLURM_PROCID` is not set", "`srun`"]),
        ({"_LOCALID": None}, ["`SLURM_LOCALID` is not set", "`srun`"]),
        ({"_PROCID": "two"}, ["`SLURM_PROCID` is 'two', not a whole number"]),
        ({"_PROCID": "3"}, ["`SLURM_PROCID` is 3, but `SLURM_STEP_NUM_TASKS` 3"]),
        ({"_STEP_NUM_TASKS": "three"}, ["`SLURM_STEP_NUM_TASKS` is 'three', not a whole number"]),
        ({"_JOB_ID": "j"}, ["`SLURM_JOB_ID` is 'j', not a whole number"]),
        ({"_STEP_NODELIST": "n[9-"}, ["`SLURM_STEP_NODELIST` ('n[9-')", "TF_CONFIG"]),
        ({"_STEP_NODELIST": ""}, ["`SLURM_STEP_NODELIST` ('')"]),
        ({"_STEP_NODELIST": "n9"}, ["`SLURM_STEP_NODELIST` ('n9')", "`SLURM_STEP_NUM_TASKS` ('3')"]),
        ({"_STEP_TASKS_PER_NODE": "1,x"}, ["`SLURM_STEP_TASKS_PER_NODE` ('1,x')"]),
        ({"_STEP_TASKS_PER_NODE": "1,1"}, ["`SLURM_STEP_TASKS_PER_NODE` ('1,1')", "`SLURM_STEP_NUM_TASKS` ('3')"]),
        ({"D_NODENAME": "m1"}, ["`SLURMD_NODENAME`", "m1:10008", "n9:10007"]),
        ({"_LOCALID": "2"}, ["`SLURM_LOCALID`", "n10:10009"]),
    ],
)
def test_a_variable_that_doesn_t_fit_is_named(changes, says):
    said = refusal(step(**changes))
    for text in says:
        assert text in said
