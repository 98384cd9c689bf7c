"""`python -m trainers.verify_machine`: its checks on good and bad machines, and its report."""

import json

import numpy as np
import pytest

from core.errors import ConfigurationError
from core.losses.adversarial import non_saturating
from core.telemetry import JsonLines
from tests.written_runs import write_run
from trainers.runs.read import read_run
from trainers.verify_machine import __main__ as command
from trainers.verify_machine import checks, kernels
from trainers.verify_machine.lab import (
    Check,
    FailedError,
    Lab,
    Machine,
    Outcome,
    devices_together,
    made,
    markdown,
    write_report,
)

MACHINE = Machine("GPU", ("GPU:0", "GPU:1"), {"tensorflow": "2.21.0"}, ("a card", "TensorFloat-32 is on"))
LOSSES = {20: 2.0, 40: 1.0, 60: 0.5}


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path, MACHINE, 2)


def test_figures_may_differ_in_their_last_digits(tmp_path):
    one = write_run(tmp_path / "one", losses=LOSSES, split="train")
    near = write_run(tmp_path / "near", losses={step: x * (1 + 1e-5) for step, x in LOSSES.items()}, split="train")
    assert checks._same_figures(read_run(one), read_run(near)) == "1 metrics, at most 1.0e-05 apart"


@pytest.mark.parametrize("wrong", [{60: 0.51}, {60: float("nan")}], ids=["off", "nan"])
def test_figures_that_differ_are_named(tmp_path, wrong):
    one = write_run(tmp_path / "one", losses=LOSSES, split="train")
    other = write_run(tmp_path / "other", losses={**LOSSES, **wrong}, split="train")
    with pytest.raises(FailedError, match="`train/loss` is off by"):
        checks._same_figures(read_run(one), read_run(other))


@pytest.mark.parametrize("name", ["loss", "accuracy", *non_saturating().accuracy(np.zeros([1]), np.zeros([1]))])
def test_difference_in_each_figure_that_is_learnt_is_seen(tmp_path, name):
    runs = []
    for which, value in (("one", 0.5), ("other", 0.55)):
        path = write_run(tmp_path / which, losses={}, exit_code=None)
        metrics = JsonLines(path / "metrics.jsonl", 0)
        metrics.write(20, "train", {f"d/{name}": value, "examples_per_second": 1.0 + value})
        metrics.close()
        runs.append(read_run(path))
    with pytest.raises(FailedError, match=f"`train/d/{name}` is off by"):
        checks._same_figures(*runs)


def test_runs_without_figures_in_common_are_no_pass(tmp_path):
    one = write_run(tmp_path / "one", losses=LOSSES, split="train")
    other = write_run(tmp_path / "other", losses=LOSSES, split="eval")
    with pytest.raises(FailedError, match="no metrics in common"):
        checks._same_figures(read_run(one), read_run(other))


def test_a_bit_that_differs_is_seen(tmp_path):
    import tensorflow as tf

    from core import checkpoint

    for name, value in {"one": 1.0, "same": 1.0, "other": 1.0 + 2**-23}.items():
        folder = tmp_path / name / "checkpoints"
        checkpoint.save(folder, {"net/w": tf.Variable([value])}, step=1, examples=1, config_hash="")
    checks._same_bits(tmp_path / "one", tmp_path / "same")
    with pytest.raises(FailedError, match=r"1 of 1 variables differ, `net/w` among them"):
        checks._same_bits(tmp_path / "one", tmp_path / "other")
    with pytest.raises(FailedError, match="no checkpoint"):
        checks._same_bits(tmp_path / "one", tmp_path / "none")


def test_kernels_are_right_here_and_a_wrong_one_is_named(monkeypatch, lab):
    found = kernels.errors()
    assert set(found) == set(kernels.KERNELS)
    assert max(found.values()) < checks.KERNEL_ERROR
    for error in (1e-2, float("nan")):
        monkeypatch.setattr(checks, "command", lambda *_, error=error: json.dumps({**found, "sums": error}))
        with pytest.raises(FailedError, match="sums is off by"):
            checks.kernels(lab)


def test_check_that_fails_is_a_line_of_the_report_and_the_others_are_made(lab):
    def fails(lab):
        raise FailedError("3 | 4 differ")

    told = [made(Check("a", "what a shows", fails), lab), made(Check("b", "what b shows", lambda lab: "fine"), lab)]
    page, figures = write_report(lab, told)
    assert "| a | what a shows | **FAILED** 3 \\| 4 differ | 0 |\n| b | what b shows | fine | 0 |\n" in page.read_text()
    assert [each["passed"] for each in json.loads(figures.read_text())["checks"]] == [False, True]
    assert "Verified on 2 x GPU; 2 used together." in markdown(lab, told)


ONE_GPU = Machine("GPU", ("GPU:0",), {}, ())


@pytest.mark.parametrize(
    ("machine", "asked", "together"),
    [(ONE_GPU, None, 1), (MACHINE, None, 2), (Machine("CPU", ("CPU:0",), {}, ()), None, 2), (ONE_GPU, 1, 1)],
)
def test_as_many_are_used_together_as_there_are_or_two_virtual_cpus(machine, asked, together):
    assert devices_together(machine, asked) == together


def test_more_devices_than_there_are_are_refused():
    with pytest.raises(ConfigurationError, match=r"`--replicas` is 2, but this machine has 1 x GPU"):
        devices_together(ONE_GPU, 2)


def test_on_one_gpu_nothing_of_several_is_verified_and_nothing_fails_of_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("trainers.verify_machine.lab.look", lambda folder: folder.mkdir() or ONE_GPU)
    tried = []
    monkeypatch.setattr(
        "trainers.verify_machine.lab.made", lambda check, lab: tried.append(check) or Outcome(check, True, "well", 1.0)
    )
    assert command.main([f"--out={tmp_path / 'out'}"]) == 0
    assert {*tried} == {*checks.CHECKS, *checks.SPEED}
    assert Lab(tmp_path, ONE_GPU, 1).together == []
    assert "checks of several devices are skipped" in capsys.readouterr().out
    assert "Verified on 1 x GPU; only one" in (tmp_path / "out" / "report.md").read_text()
    assert command.main([f"--out={tmp_path / 'other'}", "--only=cuts"]) == 2
    assert "`--only` is 'cuts', which compares several devices" in capsys.readouterr().err


def test_use_of_a_step_is_in_the_sentence_of_the_diagnosis(lab, monkeypatch):
    def diagnosed(log, *flags):
        (lab.folder / "diagnosis").mkdir()
        verdict = {"kind": "batch", "share": 0.87, "sentence": "batch-bound: 87 % of each step."}
        (lab.folder / "diagnosis" / "diagnosis.json").write_text(json.dumps({"verdict": verdict}))

    monkeypatch.setattr(checks, "command", diagnosed)
    assert checks.is_used_well(lab) == "batch-bound: 87 % of each step."


def test_failed_command_is_reported_with_its_error_and_its_log(lab):
    with pytest.raises(FailedError, match=r"`trainers.main` ended with 2: error: .*no such gin file.*bad.log"):
        lab.train("bad", "no-such")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--replicas=1"], "`--replicas` is 1"),
        (["--only=kernel"], "Did you mean `kernels`?"),
        (["--out={out}"], "holds an earlier report"),
    ],
)
def test_flags_that_are_wrong_are_refused(tmp_path, capsys, monkeypatch, words, said):
    (tmp_path / "report.md").write_text("")
    monkeypatch.chdir(tmp_path)
    assert command.main([word.format(out=tmp_path) for word in words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_command_verifies_this_machine(forks, tmp_path, capsys):
    words = ["--only=learns", "--only=replicates", "--only=places", "--only=cuts", "--only=compiles"]
    assert command.main([f"--out={tmp_path / 'out'}", *words]) == 0
    assert "none of 5 checks failed" in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["kind"], report["replicas"]) == ("CPU", 2)
