"""Replaying a capsule names the fault of each kind: operation, module, parameter and row."""

import pytest
from capsule_lab import MESH, TWO, end_badly, replayed, write

from tests.commands import CONFIGS, launch

LONG = pytest.mark.long
MICROBATCHES = "--gin_param=Trainer.microbatches = 2"

# kind: operation, a line of code that called it
KINDS = {
    "log": ("Log", "tf.math.log(x)"),
    "sqrt": ("SqrtGrad, in the gradient of Sqrt", "tf.sqrt(x)"),
}


CASES = [("log", (TWO,)), ("log", (MESH,)), ("sqrt", (TWO, MICROBATCHES))]


@LONG
@pytest.mark.parametrize(("kind", "flags"), CASES)
def test_row_of_a_module_that_is_not_finite_is_named(kind, flags, tmp_path):
    operation, line = KINDS[kind]
    found = replayed(tmp_path, end_badly(tmp_path, f"--gin_param=Mine.kind = '{kind}'", *flags))
    assert found["operation"][0] == operation, found
    assert any(text.startswith("mine.py:") and line in text for text in found[""]), found
    assert found["module"] == ["`net/inner`, a `Inner`"], found
    assert found["parameter"] == ["`net/inner/scale` went into it"], found
    (row,) = found["row"]
    assert "example 17 of source `numbers`" in row
    assert ("on replica" in row) == (TWO in flags)


@LONG
def test_rate_that_makes_the_weights_explode_is_no_row_s_fault(tmp_path):
    found = replayed(tmp_path, end_badly(tmp_path, "--gin_param=Mine.kind = 'rate'", TWO))
    assert found["operation"] == ["Square"], found
    assert any("return Loss(tf.square(y))" in text for text in found[""])
    assert found["row"] == ["each of the 4 alone"]
    assert "`net/w`" in found["parameter"][0]
    assert "`net/inner/scale`" in found["parameter"][0]


@pytest.mark.parametrize("flags", [(), pytest.param((TWO,), marks=LONG)])
def test_a_slot_that_is_struck_steps_before_the_loss_is_found_where_it_was_written(flags, tmp_path):
    capsule = end_badly(tmp_path, "--gin_param=Mine.kind = 'slot'", *flags)
    assert capsule.endswith("run/capsules/step-000000014")  # its weights were written by the slot's NaN, in step 13
    found = replayed(tmp_path, capsule)
    assert "step 12 is not finite" in found[""]
    assert found["operation"] == ["Log"]
    assert any("tf.math.log(tf.cast(FROM + 2 - step" in text for text in found[""])
    assert "the new value of `optimizer/fit/forgetful/left/w`" in found["not finite"][0]
    assert "row" not in found


@LONG
def test_example_that_is_not_finite_is_named_and_the_code_is_the_run_s(tmp_path):
    capsule = end_badly(tmp_path, "--gin_param=numbers.hole = True", TWO, exit_code=4)
    found = replayed(tmp_path, capsule, exit_code=4)
    assert found["data"] == ["`x` of the batch holds non-finite values"]
    assert ["example 17 of source `numbers`" in row for row in found["row"]] == [True]


@LONG
def test_two_workers_leave_one_and_replay_it_together(tmp_path):
    workers = f"--gin_file={CONFIGS / 'runtime/multi_worker.gin'}"
    done = launch("--workers=2", "--", *write(tmp_path), workers, "--gin_param=Mine.kind = 'log'", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    command = "python -m trainers.launch --workers=2 -- --mode=replay --capsule="
    capsule = done.stderr.partition(f"`{command}")[2].partition("`")[0]
    done = launch("--workers=2", "--", "--mode=replay", f"--capsule={capsule}", cwd=tmp_path)
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert done.stdout.count("  operation  Log") == 1
    assert "example 17 of source `numbers`, on replica " in done.stdout
