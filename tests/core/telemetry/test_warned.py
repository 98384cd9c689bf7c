"""Warnings are stored once each, through kills, resumes and rewinds."""

import json

import pytest

from core.telemetry import Telemetry, Warned


def kept(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_is_kept_once_with_the_last_step_heard_of(tmp_path):
    path = tmp_path / "warnings.jsonl"
    telemetry = Telemetry([], Warned(path, 0))
    assert not path.exists()  # a run that is well leaves no file
    telemetry.progress(10)
    telemetry.warn_once("20 % of the time was spent waiting")
    telemetry.write(20, "train", {"loss": 1.0})
    telemetry.warn_once("31 % of the time was spent waiting")
    telemetry.warn_once("something else")
    telemetry.close()
    expected = [(10, "20 % of the time was spent waiting"), (20, "something else")]
    assert [(line["step"], line["warning"]) for line in kept(path)] == expected


@pytest.mark.parametrize("first_step", [0, 10, 20])
def test_a_run_that_goes_on_has_those_of_before_and_none_twice(tmp_path, first_step):
    path = tmp_path / "warnings.jsonl"
    for step, text in ((10, "early 1"), (20, "late 1")):
        Warned(path, 10).warn(step, text)
    with path.open("a") as file:
        file.write('{"step": 20, "warn')  # and was killed
    warned = Warned(path, first_step)
    for text in ("early 2", "late 2"):
        warned.warn(30, text)
    found = [(line["step"], line["warning"]) for line in kept(path)]
    early = (10, "early 1") if first_step else (30, "early 2")
    assert found == [early, (20, "late 1") if first_step == 20 else (30, "late 2")]


def test_warnings_of_different_things_are_kept_each_time(tmp_path):
    path = tmp_path / "warnings.jsonl"
    for _ in range(2):  # the second time it was killed, and comes to the same steps
        telemetry = Telemetry([], Warned(path, 10))
        telemetry.progress(10)
        for step in (7, 8):
            telemetry.warn(f"step {step} was left out")
        telemetry.close()
    assert [line["warning"] for line in kept(path)] == ["step 7 was left out", "step 8 was left out"]


def test_warnings_after_a_rewind_are_given_again(tmp_path):
    path = tmp_path / "warnings.jsonl"
    telemetry = Telemetry([], Warned(path, 0))
    for step in (30, 20, 30):
        telemetry.rewind(20)
        telemetry.progress(step)
        telemetry.warn_once("it is slow")
        assert [line["step"] for line in kept(path)] == [step]
        telemetry.rewind(10)
    telemetry.close()
