"""A planted fault of each kind is named by the replay of its capsule: operation, module, parameter and row."""

import pytest
from capsule_lab import TWO, end_badly, replayed

LONG = pytest.mark.long
MICROBATCHES = "--gin_param=Trainer.microbatches = 2"

# kind: operation, a line of code that asked for it, module, parameter, whether a row is to blame
KINDS = {
    "log": ("Log", "tf.math.log(x)", "net/inner", "net/inner/scale", True),
    "sqrt": ("SqrtGrad, in the gradient of Sqrt", "tf.sqrt(x)", "net/inner", "net/inner/scale", True),
    "half": ("Cast", "tf.cast(x * 1e5, tf.float16)", "net/inner", "net/inner/scale", None),
    "integer": ("Sqrt", "tf.sqrt(tf.reduce_sum(tf.cast(large", "net/inner", "net/inner/scale", True),
}


def cases():
    for kind in KINDS:
        for flags, name in (((), "one"), ((TWO,), "two"), ((TWO, MICROBATCHES), "microbatches")):
            plain = (kind, name) in {("log", "two"), ("sqrt", "one")}
            yield pytest.param(kind, flags, id=f"{kind}-{name}", marks=[] if plain else LONG)


@pytest.mark.parametrize(("kind", "flags"), cases())
def test_what_a_row_does_within_a_module_is_named(kind, flags, tmp_path):
    operation, line, module, parameter, by_row = KINDS[kind]
    found = replayed(tmp_path, end_badly(tmp_path, f"--gin_param=Mine.kind = '{kind}'", *flags))
    assert found["operation"][0] == operation, found
    assert any(text.startswith("mine.py:") and line in text for text in found[""]), found
    assert found["module"][0].startswith(f"`{module}`, Inner"), found
    assert found["parameter"] == [f"`{parameter}`"], found
    if by_row:
        (row,) = found["row"]
        assert "example 17 of source `numbers`" in row
        assert ("on replica" in row) == (TWO in flags)


@pytest.mark.parametrize("flags", [pytest.param((), marks=LONG, id="one"), pytest.param((TWO,), marks=LONG, id="two")])
def test_a_rate_that_makes_the_weights_explode_is_no_row_s_fault(flags, tmp_path):
    found = replayed(tmp_path, end_badly(tmp_path, "--gin_param=Mine.kind = 'rate'", *flags))
    assert found["operation"] == ["Square"], found
    assert any("return Loss(tf.square(y))" in text for text in found[""])
    assert len(found["row"]) == 4
    assert "`net/w`" in found["parameter"][0]


@pytest.mark.parametrize("flags", [(), pytest.param((TWO,), marks=LONG)])
def test_a_slot_that_is_struck_steps_before_the_loss_is_found_where_it_was_written(flags, tmp_path):
    capsule = end_badly(tmp_path, "--gin_param=Mine.kind = 'slot'", *flags)
    assert capsule == "run/capsules/step-000000014"  # whose weights were written by the NaN of the slot, in step 13
    found = replayed(tmp_path, capsule)
    assert "step 12 is not finite" in found[""]
    assert found["operation"] == ["Log"]
    assert any("tf.math.log(tf.cast(FROM + 2 - step" in text for text in found[""])
    assert "what the update wrote to `optimizer/fit/forgetful/left/w`" in found["phase"][0]
    assert "row" not in found


@pytest.mark.parametrize("flags", [(), pytest.param((TWO,), marks=LONG)])
def test_an_example_that_is_not_finite_is_named_and_the_code_is_the_run_s(flags, tmp_path):
    capsule = end_badly(tmp_path, "--gin_param=numbers.hole = True", *flags, exit_code=4)
    found = replayed(tmp_path, capsule, exit_code=4)
    assert found["data"] == ["`x` of the batch holds what isn't finite"]
    assert ["example 17 of source `numbers`" in row for row in found["row"]] == [True]


@LONG
def test_where_rows_are_mixed_the_row_is_the_operation_s(tmp_path):
    kind = ("--gin_param=Mine.kind = 'log'", "--gin_param=Mine.mixes = True")
    found = replayed(tmp_path, end_badly(tmp_path, *kind))
    assert found["operation"] == ["Log"]
    assert ["example 17 of source `numbers`" in row for row in found["row"]] == [True]
