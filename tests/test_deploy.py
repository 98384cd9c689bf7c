"""The files of `deploy/` start this checkout's command."""

import json
import os
import re
import subprocess
import sys

import pytest

from core.cluster.handshake import TOKEN
from tests.commands import CHECKOUT, environment

SLURM = CHECKOUT / "deploy" / "slurm.sh"
TFJOB = CHECKOUT / "deploy" / "tfjob.yaml"
DOCKERFILE = CHECKOUT / "deploy" / "Dockerfile"


def test_the_slurm_file_is_bash():
    subprocess.run(["bash", "-n", str(SLURM)], check=True)


def slurm(folder, *flags, code=0, restarts=0, nodes=2):
    """Runs the Slurm file; stand-ins for `srun` and `scontrol` record their arguments."""
    writes = 'printf "%s\\n" "$@" > {0}.called; printf %s "$TAPELOOP_TOKEN" > {0}.token; exit {1}'
    stand_ins = {
        "srun": writes.format("srun", code),
        "scontrol": writes.format("scontrol", 0),
        "python": f'exec {sys.executable} "$@"',
    }
    for name, text in stand_ins.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    told = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": str(restarts),
        "SLURM_JOB_NUM_NODES": str(nodes),
    }
    return subprocess.run(
        ["bash", str(SLURM), *flags], cwd=folder, env={**environment(), **told}, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [(0, 0, False), (2, 0, False), (75, 9, True), (6, 2, True), (137, 3, False)],
)
def test_a_slurm_job_runs_main_and_queues_again_what_may_pass(code, restarts, requeued, tmp_path):
    flags = ["--gin_file=configs/digits_mlp.gin", "--gin_param=digits.split = 'train'"]
    done = slurm(tmp_path, *flags, code=code, restarts=restarts)
    called = (tmp_path / "srun.called").read_text().splitlines()
    token = (tmp_path / "srun.token").read_text()
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    assert token not in done.stdout.decode()
    assert "--export=ALL" in called  # including the token, whatever `sbatch` exports
    place = called.index("trainers.main")
    assert called[place - 2 : place] == ["python", "-m"]
    parsed = parse_main(called[place + 1 :])
    assert parsed.gin_file == ["configs/digits_mlp.gin", "configs/runtime/multi_worker.gin"]
    assert parsed.gin_param == ["digits.split = 'train'"]
    assert (tmp_path / "scontrol.called").exists() == requeued
    assert done.returncode == (0 if requeued else code)


@pytest.mark.parametrize(("nodes", "workers"), [(4, 4), (3, 2), (1, 1)])
def test_a_slurm_job_runs_as_many_workers_as_can_share_a_step(nodes, workers, tmp_path):
    done = slurm(tmp_path, "--gin_file=configs/digits_mlp.gin", nodes=nodes)
    assert done.stdout.decode() == f"{workers} workers on {nodes} nodes\n"
    called = (tmp_path / "srun.called").read_text().splitlines()
    assert {f"--nodes={workers}", f"--ntasks={workers}"} < set(called)
    words = called[called.index("-m") + 1 :]
    if workers == 1:  # a step of one task is no cluster: `launch` makes one
        assert words[:3] == ["trainers.launch", "--workers=1", "--"]
    assert (
        parse_main(words[words.index("trainers.main") + 1 if workers > 1 else 3 :]).gin_file[-1].endswith("worker.gin")
    )


def test_a_slurm_job_whose_flags_are_wrong_ends_before_anything_starts(tmp_path):
    done = slurm(tmp_path, "--gin_file=configs/nothing.gin")
    assert done.returncode == 2
    assert b"no such gin file" in done.stderr
    assert not (tmp_path / "srun.called").exists()


def test_the_kubernetes_manifest_runs_main_on_files_that_exist():
    _, text = TFJOB.read_text().split("\n---\n")  # after the policy: no worker is ever without it
    assert "\t" not in text
    for line in ("apiVersion: kubeflow.org/v1", "kind: TFJob"):
        assert line in text.splitlines()
    # The operator looks for these names, and reads a field only in its place.
    paths = fields(text)
    pod = "spec/tfReplicaSpecs/Worker/template/spec"
    assert paths["spec/tfReplicaSpecs/Worker/replicas"] == "2"
    assert paths["spec/tfReplicaSpecs/Worker/restartPolicy"] == "OnFailure"
    assert paths[f"{pod}/containers/name"] == "tensorflow"
    assert paths[f"{pod}/containers/ports/name"] == "tfjob-port"
    assert paths[f"{pod}/containers/volumeMounts/name"] == paths[f"{pod}/volumes/name"]
    assert json.loads(paths[f"{pod}/containers/command"]) == ["python", "-m", "trainers.main"]
    assert paths[f"{pod}/containers/env/name"] == TOKEN
    assert paths[f"{pod}/containers/env/valueFrom/secretKeyRef/name"] == "tapeloop"
    assert paths[f"{pod}/containers/env/valueFrom/secretKeyRef/key"] == "token"
    flags = parse_main(json.loads(x) for x in re.findall(r'^\s+- (".*")$', text, re.MULTILINE))
    assert all((CHECKOUT / name).exists() for name in flags.gin_file)
    assert flags.gin_file[-1] == "configs/runtime/multi_worker.gin"
    assert flags.workdir.startswith(paths[f"{pod}/containers/volumeMounts/mountPath"] + "/")


def test_the_kubernetes_manifest_lets_only_the_workers_reach_their_port():
    policy, job = (fields(text) for text in TFJOB.read_text().split("\n---\n"))
    assert policy["kind"] == "NetworkPolicy"
    # The label that the operator puts on each pod of a job: another run of the namespace is a stranger, too.
    for place in ("podSelector", "ingress/from/podSelector"):
        assert policy[f"spec/{place}/matchLabels/training.kubeflow.org/job-name"] == job["metadata/name"]
    assert json.loads(policy["spec/policyTypes"]) == ["Ingress"]
    port = "spec/tfReplicaSpecs/Worker/template/spec/containers/ports/containerPort"
    assert policy["spec/ingress/ports/port"] == job[port]
    created = f"kubectl create secret generic {policy['metadata/name']} --from-literal=token="
    assert created in TFJOB.read_text()
    assert created in (CHECKOUT / "docs" / "many-machines.md").read_text()


def test_the_page_says_first_what_the_port_is_and_names_every_fence():
    page = (CHECKOUT / "docs" / "many-machines.md").read_text()
    first = page.split("\n\n")[1]
    assert "whoever reaches it owns the worker" in first
    assert "NetworkPolicy" in first
    assert TOKEN in page
    assert "`--open_ports`" in page


def test_the_image_holds_what_the_manifest_runs():
    text = DOCKERFILE.read_text()
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {word for word, _ in lines} <= {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "CMD"}
    said = dict(lines)
    project = (CHECKOUT / "pyproject.toml").read_text()
    oldest, too_new = map(int, re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', project).groups())
    python = re.fullmatch(r"python:3\.(\d+)-slim", said["FROM"])
    assert oldest <= int(python[1]) < too_new
    copied = {name for word, rest in lines if word == "COPY" for name in rest.split()[:-1]}
    assert all((CHECKOUT / name).exists() for name in copied)
    packages = re.findall(r'"(\w+)\*"', re.search(r"^include = .*", project, re.MULTILINE)[0])
    assert copied >= {*packages, "configs", "pyproject.toml", "README.md"}
    (extra,) = re.findall(r"EXTRAS=\[(\w+)\]", text)
    assert re.search(rf"^{extra} = \[", project, re.MULTILINE)
    assert said["ARG"] == 'EXTRAS=""'
    assert said["RUN"].endswith(' -e ".${EXTRAS}"')
    paths = fields(TFJOB.read_text())
    container = "spec/tfReplicaSpecs/Worker/template/spec/containers"
    assert said["WORKDIR"] == paths[f"{container}/workingDir"]
    assert said["ENTRYPOINT"] == paths[f"{container}/command"]
    pages = text + (CHECKOUT / "docs" / "many-machines.md").read_text()
    assert set(re.findall(r"docker build .* -t (\S+)", pages)) == {paths[f"{container}/image"]}
    assert set(re.findall(r"docker build -f (\S+)", pages)) == {"deploy/Dockerfile"}


# --- with servers -----------------------------------------------------------------------------------------------------

SLURM_SERVERS = CHECKOUT / "deploy" / "slurm_servers.sh"
TFJOB_SERVERS = CHECKOUT / "deploy" / "tfjob_servers.yaml"
RANKS = 'while [ "$1" != bash ]; do shift; done; for i in 0 1 2 3; do SLURM_PROCID=$i "$@" || exit $?; done'
# The first worker is killed once.
PYTHON = """
echo "$TF_CONFIG" >> python.$SLURM_PROCID; printf '%s\\n' "$@" > python.flags
[ "$SLURM_PROCID" != 2 ] || [ "$(wc -l < python.2)" != 1 ] || exit 137"""


def slurm_servers(folder, *flags, nodes=4, python=PYTHON):
    """Runs the Slurm file with stand-ins; `srun`'s runs the tasks one after another."""
    scontrol = '[ "$1" = show ] && seq -f n%.0f 4 || touch requeued'
    for name, text in {"srun": RANKS, "scontrol": scontrol, "python": python, "sleep": ":"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    told = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]"}
    return subprocess.run(
        ["bash", str(SLURM_SERVERS), *flags],
        cwd=folder,
        env={**environment(), **told, "SLURM_JOB_NUM_NODES": str(nodes)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_slurm_job_with_servers_tells_each_task_its_place(tmp_path):
    done = slurm_servers(tmp_path, "--gin_file=configs/digits_mlp.gin", "--gin_param=digits.split = 'train'")
    assert done.returncode == 0, done.stderr
    said = [[json.loads(line) for line in (tmp_path / f"python.{i}").read_text().splitlines()] for i in range(4)]
    assert [len(configs) for configs in said] == [1, 1, 2, 1]  # the killed worker starts again
    tasks = [("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
    for configs, (job, index) in zip(said, tasks, strict=True):
        for config in configs:
            assert config["task"] == {"type": job, "index": index}
            assert config["cluster"] == {"chief": ["n1:10007"], "ps": ["n2:10007"], "worker": ["n3:10007", "n4:10007"]}
    words = (tmp_path / "python.flags").read_text().splitlines()
    parsed = parse_main(words[words.index("trainers.main") + 1 :])
    assert parsed.gin_file == ["configs/digits_mlp.gin", "configs/runtime/parameter_server.gin"]
    assert parsed.gin_param == ["digits.split = 'train'"]


@pytest.mark.parametrize(("code", "requeued"), [(2, False), (6, True), (75, True)])
def test_a_slurm_job_with_servers_is_queued_again_where_that_may_help(code, requeued, tmp_path):
    done = slurm_servers(tmp_path, python=f"exit {code}")
    assert (tmp_path / "requeued").exists() == requeued
    assert done.returncode == (0 if requeued else code)


def test_a_slurm_job_of_too_few_nodes_for_its_servers_is_refused(tmp_path):
    done = slurm_servers(tmp_path, nodes=2)
    assert (done.returncode, done.stderr) == (
        2, "error: SERVERS is 1, and the job has 2 nodes: give --nodes=3 or more\n",
    )  # fmt: skip


def test_the_kubernetes_manifest_with_servers_is_the_other_one_in_three_roles():
    policy, job = TFJOB_SERVERS.read_text().split("\n---\n")
    assert fields(policy) == fields(TFJOB.read_text().split("\n---\n")[0])
    paths = fields(job)
    roles = "spec/tfReplicaSpecs"
    for role, replicas in (("Chief", "1"), ("PS", "1"), ("Worker", "2")):
        assert paths[f"{roles}/{role}/replicas"] == replicas
        assert paths[f"{roles}/{role}/restartPolicy"] == "OnFailure"
    assert [paths[f"{roles}/{role}/template"] for role in ("Chief", "PS", "Worker")] == [
        "&template",
        *2 * ["*template"],
    ]
    other = fields(TFJOB.read_text().split("\n---\n")[1])
    pod, pod_of_other = f"{roles}/Chief/template/spec", f"{roles}/Worker/template/spec"
    same = [path for path in other if path.startswith(pod_of_other)]
    assert all(paths[path.replace(pod_of_other, pod)] == other[path] for path in same)
    flags = parse_main(json.loads(x) for x in re.findall(r'^\s+- (".*")$', job, re.MULTILINE))
    assert all((CHECKOUT / name).exists() for name in flags.gin_file)
    assert flags.gin_file[-1] == "configs/runtime/parameter_server.gin"


# --- reading ----------------------------------------------------------------------------------------------------------


def fields(text):
    """Returns the scalars of a simple YAML text by path; for a list, those of its first item."""
    found, stack = {}, []
    for line in text.splitlines():
        match = re.fullmatch(r"( *)(- )?([\w./-]+):(?: +([^#]+?))?(?: +#.*)?", line)
        if match:
            indent = len(match[1]) + len(match[2] or "")
            assert indent % 2 == 0, line
            while stack and stack[-1][0] >= indent:
                stack.pop()
            stack.append((indent, match[3]))
            if match[4]:
                found.setdefault("/".join(name for _, name in stack), match[4])
    return found


def parse_main(flags):
    from trainers import main

    return main.parse(list(flags))
