"""The hooks and the workflow run the same checks as `.ci/run`, with commands that exist."""

import os
import re
import shlex
import shutil

import yaml

from tests.commands import CHECKOUT

CI = CHECKOUT / ".ci" / "run"


def test_hooks_run_what_ci_runs_and_fetch_nothing():
    (local,) = yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    assert {hook["id"] for hook in local["hooks"]} == {"ruff", "format", "mypy"}
    for hook in local["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"] in map(str.strip, CI.read_text().splitlines()), hook["entry"]
        assert shutil.which(shlex.split(hook["entry"])[0]), hook["entry"]


def test_the_workflow_runs_ci_on_both_ends_of_what_is_supported():
    workflow = CHECKOUT / ".github" / "workflows" / "ci.yml"
    (job,) = yaml.safe_load(workflow.read_text())["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(CI, os.X_OK)
    supported = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (CHECKOUT / "pyproject.toml").read_text())
    oldest, too_new = map(int, supported.groups())
    assert job["strategy"]["matrix"]["python"] == [f"3.{oldest}", f"3.{too_new - 1}"]


def test_a_workflow_tries_the_next_tensorflow_each_week():
    workflow = yaml.safe_load((CHECKOUT / ".github" / "workflows" / "next_tensorflow.yml").read_text())
    (job,) = workflow["jobs"].values()
    command = shlex.split(job["steps"][-1]["run"])
    assert command[:3] == ["python", "-m", "tools.next_tensorflow"]
    assert workflow[True]["schedule"]  # `on`, which YAML reads as true
