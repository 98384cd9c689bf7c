"""`python -m tools.same_numbers` names each difference of two runs, and none of equal runs."""

import pytest

from tools.same_numbers import __main__ as command
from tools.same_numbers.__main__ import Found, differences

LINE = {"step": 2, "split": "train", "loss": 0.5}
FOUND = Found({"task/w": "aa", "optimizer/net/m": "bb"}, [LINE], [["net", "gradients", "float32", "8"]])


def test_equal_runs_have_no_differences():
    assert list(differences(FOUND, FOUND, {})) == []


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (FOUND._replace(variables={**FOUND.variables, "task/w": "ab"}), "variable `task/w` differs"),
        (FOUND._replace(variables={"task/w": "aa"}), "variable `optimizer/net/m` is gone"),
        (FOUND._replace(variables={**FOUND.variables, "task/b": "cc"}), "variable `task/b` is new"),
        (FOUND._replace(lines=[{**LINE, "loss": 0.25}]), "`loss` of step 2 (train) was 0.5 and is 0.25"),
        (FOUND._replace(lines=[LINE, LINE]), "1 metric lines became 2"),
        (FOUND._replace(collectives=[]), "the collectives were"),
        (Found(code=2, output="error: no scope"), "the exit code was 0 and is 2:\nerror: no scope"),
    ],
)
def test_difference_of_two_runs_is_named(now, says):
    [found] = differences(FOUND, now, {})
    assert found.startswith(says)


def test_renamed_paths_are_matched():
    now = FOUND._replace(variables={"task/net/w": "aa", "optimizer/net/m": "bb"})
    assert list(differences(FOUND, now, {"task/w": "task/net/w"})) == []
    assert len(list(differences(FOUND, now, {}))) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--against=HEAD", "--configs", "digits_lin"], "Did you mean `digits_linear`"),
        (["--against=HEAD", "--steps=1"], "2 or more"),
        (["--against=HEAD", "--strategies", "pods"], "choose from"),
        (["--against=HEAD", "--renamed", "task/w"], "pairs"),
    ],
)
def test_wrong_flags_are_refused(arguments, says, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert says in capsys.readouterr().err


def test_unknown_revision_is_named():
    with pytest.raises(SystemExit, match="no-such-revision"):
        command.main(["--against=no-such-revision", "--configs", "digits_linear"])


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("one_device", ["runtime/one_device.gin"]),
        ("mirrored", ["runtime/mirrored.gin", "mirrored.replicas = 2"]),
        ("mesh", ["runtime/mesh.gin"]),
        ("local_steps", ["runtime/mirrored.gin", "runtime/local_steps.gin", "Trainer.local_steps = 10"]),
        ("servers", ["runtime/parameter_server.gin"]),
    ],
)
def test_case_has_the_files_and_bindings_of_its_strategy(strategy, words, tmp_path):
    case = command.Case("digits_linear", strategy, 2)
    order = case.order(tmp_path, tmp_path, 20, None)
    flags = [*(f"--gin_file=CHECKOUT/configs/{word}" for word in words if "/" in word)]
    flags += [f"--gin_param={word}" for word in words if "/" not in word]
    assert set(flags) <= set(order["flags"])
    assert ("summary" in order["modes"]) == (case.replicas > 1)
    assert bool(order["launch"]) == (strategy == "servers")


@pytest.mark.long
def test_revision_trains_as_itself(monkeypatch, capsys):
    monkeypatch.setattr(command, "MICROBATCHES", (2,))
    how = ["--configs", "digits_linear", "--steps=4", "--strategies", "local_steps"]
    assert command.main(["--against=HEAD", *how]) == 0
    assert "1 of 1 are the same as at HEAD" in capsys.readouterr().out
