"""What a command refuses is told in a short paragraph that no terminal obeys, whatever it was given."""

import pytest

from tests.commands import CONFIGS
from trainers import main as command
from trainers.launch import __main__ as launcher

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
LONG = "x" * 1_000_000
HOSTILE = "\x1b[2J\x07\udce9"
GIVEN = {"long": LONG, "hostile": HOSTILE, "digits": "9" * 5000}


def check(error, given):
    """It is one paragraph that names what was given, or its beginning."""
    assert error.startswith("error: ")
    assert len(error) < 2100
    assert error.endswith("\n")
    assert all(c.isprintable() for c in error[:-1])
    assert given[:5].encode("unicode_escape").decode()[:5] in error


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize(
    "flag", ["--mode=", "--workdir=s3://", "--kill_after_step=x", "--eager=", "--none", "--flagfile=", "--v=x", "a "]
)
def test_flags(flag, given, capsys):
    assert command.main([LINEAR, flag + given]) == 2
    check(capsys.readouterr().err, given)


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("flag", ["--workers=", "--deadline=x", "--max_restarts=x"])
def test_flags_of_launch(flag, given, capsys):
    assert launcher.main([flag + given, "--", LINEAR]) == 2
    check(capsys.readouterr().err, given)
