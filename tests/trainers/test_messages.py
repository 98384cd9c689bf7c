"""A command's refusal is one short paragraph without control characters, for any input."""

import re

import pytest

from core.errors import ConfigurationError
from tests.commands import CONFIGS
from trainers import main as command
from trainers.blame import PAGES, PLACES, report
from trainers.launch import __main__ as launcher

LINEAR = f"--gin_file={CONFIGS / 'digits_linear.gin'}"
LONG = "x" * 1_000_000
HOSTILE = "\x1b[2J\x07\udce9"
GIVEN = {"long": LONG, "hostile": HOSTILE, "digits": "9" * 5000}


def check(error, given):
    """Asserts that it is one paragraph that names the beginning of the input."""
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


def test_messages_name_a_page_and_no_page_twice(capsys):
    assert command.main([LINEAR, "--gin_param=Trainer.stepz = 3"]) == 2
    assert capsys.readouterr().err.endswith(f" See {PAGES[2]}.\n")
    report(ConfigurationError("`x` is 3: see docs/gans.md."), verbose=False)
    assert capsys.readouterr().err == "error: `x` is 3: see docs/gans.md.\n"
    report(ZeroDivisionError("one's own"), verbose=False)
    assert "docs/" not in capsys.readouterr().err


def test_message_names_the_page_of_the_place_where_it_was_raised(tmp_path, capsys):
    begin = f"--gin_param=checkpoint.path = '{tmp_path}/nothing'"
    assert (
        command.main([LINEAR, f"--workdir={tmp_path}/run", "--gin_param=Experiment.start_from = @checkpoint()", begin])
        == 5
    )
    assert capsys.readouterr().err.endswith(" See docs/warm-starts.md.\n")
    report(ConfigurationError("write:\n    return 3"), verbose=False)
    assert capsys.readouterr().err == f"error: write:\n    return 3\nSee {PAGES[2]}.\n"


def test_places_with_a_page_exist():
    for place in PLACES:
        assert list(CONFIGS.parent.glob(f"{place}*")), place


@pytest.mark.parametrize("place", [*PAGES.values(), *PLACES.values()])
def test_pages_that_messages_name_exist(place):
    name, _, anchor = place.partition("#")
    text = (CONFIGS.parent / name).read_text()
    assert not anchor or anchor in {slug(title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def slug(title):
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
