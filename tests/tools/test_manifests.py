"""`python -m tools.manifests`: the manifests of `deploy/` fit the clients' schemas, and mistakes are named."""

import pytest

from tests.commands import CHECKOUT
from tools.manifests.__main__ import main

JOB = (CHECKOUT / "deploy" / "tfjob.yaml").read_text().split("\n---\n")[1]
MISTAKES = {
    "field": (
        "restartPolicy:",
        "restartPolicies:",
        "Worker.restartPolicies: KubeflowOrgV1ReplicaSpec has no",
    ),
    "type": ("replicas: 2", "replicas: two", "tfReplicaSpecs.Worker.replicas: 'two' is no int"),
    "missing": (
        "- name: shared\n                  mountPath",
        "- mountPath",
        "volumeMounts[0]: Invalid value",
    ),
    "kind": ("kind: TFJob", "kind: TFJobs", "no class is known for 'TFJobs' of 'kubeflow.org/v1'"),
}


@pytest.mark.long
def test_manifests_fit_their_schemas_and_mistakes_are_named(tmp_path, capfd):
    assert main([]) == 0
    assert capfd.readouterr().out.count(": 0 mistakes") == 4
    files = []
    for name, (old, new, _) in MISTAKES.items():
        assert JOB.count(old) == 1
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(JOB.replace(old, new))
    assert main([*map(str, files)]) == 1
    printed = capfd.readouterr().out
    assert [said for *_, said in MISTAKES.values() if said not in printed] == []
