"""`python -m tools.slurm` without a Slurm, and how it compares results."""

import pytest

from tools.slurm import __main__ as command
from tools.slurm import cluster

RESULT = {"step": 9, "exit_code": 0, "evaluation": {"loss": 0.5}}


def test_machine_without_slurm_is_told_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cluster.shutil, "which", lambda name: None if name in ("slurmd", "munged") else name)
    monkeypatch.setattr(cluster.os, "geteuid", lambda: 1000)
    assert command.main([f"--workdir={tmp_path / 'new'}"]) == 2
    said = "error: this machine lacks slurmd, munged, root: `apt install slurm-wlm munge iproute2`, as root\n"
    assert capsys.readouterr().out == said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("found", "near"),
    [
        ({**RESULT, "step": 8}, 0.0),
        ({**RESULT, "evaluation": {"loss": 0.5 + 1e-12}}, 0.0),
        ({**RESULT, "evaluation": {"loss": 0.51}}, 1e-3),
    ],
)
def test_results_that_differ_are_found(found, near):
    command._same(RESULT, RESULT)
    command._same({**RESULT, "evaluation": {"loss": 0.5001}}, RESULT, near=1e-3)
    with pytest.raises(AssertionError, match="that of the undisturbed run"):
        command._same(found, RESULT, near=near)


def test_condition_that_does_not_come_is_named(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(cluster.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(cluster.time, "sleep", lambda seconds: None)
    cluster.wait_for(lambda: True, "it")
    with pytest.raises(TimeoutError, match="the end of `run` didn't come within 5 s"):
        cluster.wait_for(lambda: False, "the end of `run`", 5.0)
