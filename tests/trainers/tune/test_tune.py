"""`--mode=tune` by the command: what it prints is true of this machine, can be pasted, and leaves a run as it was."""

import json

import pytest

from tests.commands import CONFIGS, run

DIGITS = f"--gin_file={CONFIGS / 'digits_mlp.gin'}"


def tune(tmp_path, *flags):
    done = run(*flags, "--mode=tune", "--workdir=run", cwd=tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout, json.loads((tmp_path / "run" / "tune.json").read_text())


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_small_network_is_tuned_and_its_run_stays_as_it_is(tmp_path):
    few = ["--gin_param=Trainer.steps = 200", "--gin_param=Trainer.chunk_steps = 1"]
    assert run(DIGITS, *few, "--workdir=run", cwd=tmp_path).returncode == 0
    before = files(tmp_path / "run")
    said, found = tune(tmp_path, DIGITS, *few)
    after = files(tmp_path / "run")
    assert {path: after[path] for path in before if path.name != "native_stderr.log"} == {
        path: x for path, x in before.items() if path.name != "native_stderr.log"
    }
    assert {path.name for path in after.keys() - before.keys()} == {"tune.json"}
    assert found["complete"]
    verdicts = {(row["setting"], row["value"]): row["verdict"] for row in found["tried"]}
    assert "void" not in verdicts.values(), said
    assert "failed" not in verdicts.values(), said
    # Of steps that take a tenth of a millisecond, one a call: more of them are worth it on any machine.
    assert found["times_as_fast"] > 1.5, said
    (line,) = (line for line in found["lines"] if line.startswith("Trainer.chunk_steps = "))
    assert line in said
    pasted = [f"--gin_param={line}" for line in found["lines"]]
    done = run(DIGITS, few[0], *pasted, "--workdir=other", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
