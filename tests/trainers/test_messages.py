"""A command's refusal is one short paragraph without control characters, for any input."""

import ast
import re
from pathlib import PurePath

import pytest
import tensorflow as tf

from core.errors import CheckpointError, ConfigurationError
from core.layers import Dropout
from core.task import Loss
from core.task.inputs import Inputs
from core.task.loss import checked
from tests.commands import CHECKOUT, CONFIGS
from tests.pages import section
from trainers import main as command
from trainers.errors.exit_report import report
from trainers.errors.pages import HELPERS, PAGES, PLACES, page_of
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
    assert capsys.readouterr().err.endswith(" See docs/running.md#configurations.\n")
    report(ConfigurationError("`x` is 3: see docs/gans.md."), verbose=False)
    assert capsys.readouterr().err == "error: `x` is 3: see docs/gans.md.\n"
    report(ConfigurationError("raised nowhere in the project"), verbose=False)
    report(ZeroDivisionError("one's own"), verbose=False)
    assert "docs/" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raises", "page"),
    [
        (lambda: checked(Loss(tf.constant(1.0)), "net", 4), "docs/testing-your-step.md#what-is-refused"),
        (lambda: Inputs({}, "net", {}, set())["x"], "docs/testing-your-step.md#what-is-refused"),
        (lambda: Dropout(2.0), "docs/parts.md#layers"),  # through a shared check
        (lambda: int("x"), None),
    ],
    ids=["scalar loss", "missing feature", "argument of a layer", "own code"],
)
def test_message_names_the_paragraph_of_the_place_where_it_was_raised(raises, page, capsys):
    with pytest.raises(Exception) as error:
        raises()
    report(error.value, verbose=False)
    said = capsys.readouterr().err
    assert said.endswith(f" See {page}.\n") if page else "docs/" not in said


def test_message_names_the_page_of_warm_starts(tmp_path, capsys):
    begin = f"--gin_param=checkpoint.path = '{tmp_path}/nothing'"
    assert (
        command.main([LINEAR, f"--workdir={tmp_path}/run", "--gin_param=Experiment.start_from = @checkpoint()", begin])
        == 5
    )
    assert capsys.readouterr().err.endswith(" See docs/use-a-run.md#warm-start-and-fine-tune.\n")


def test_code_to_copy_stays_as_it_is(tmp_path, capsys):
    def fails():
        raise CheckpointError("write:\n    return 3")

    with pytest.raises(CheckpointError) as error:
        fails()
    report(error.value, verbose=False)
    assert capsys.readouterr().err == f"error: write:\n    return 3\nSee {PAGES[5]}.\n"


def test_places_with_a_page_exist():
    for place in PLACES:
        assert list(CHECKOUT.glob(f"{place}*")), place


KINDS = {"ConfigurationError": 2, "ValueError": 2, "TypeError": 2, "DataError": 4, "CheckpointError": 5}
PLAIN = """
all and any are but can for has how its it is isn let may nor not one own say see the was who you few two out put use
about after again along also another apart because been before being between bring call cannot could does each even
first found from give given going have here hold instead into itself just keep largest later least leave like made
make many match mean might missing more most much must name need number once only other ought over part place please
right same says shape since smaller some something such take than that their them then there these they thing this
those three twice under until used value what when where which whole whose will with within without would write your
"""  # words that don't identify a message's subject
PARTS = (
    "core/layers",
    "core/losses",
    "core/metrics",
    "core/optimizers",
)  # whose files are called by what they are about  # whose files are called by what they are about
WITHOUT = {"core/initializers.py", "core/telemetry/jsonl.py", "trainers/process/bootstrap.py"}


def messages():
    """Yields the constant text of each error that the project raises: file, line, code, text."""
    for path in sorted(p for name in ("core", "models", "trainers") for p in (CHECKOUT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS and node.args:
                parts = [n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant)]
                text = " ".join(part for part in parts if isinstance(part, str))
                yield path.relative_to(CHECKOUT).as_posix(), node.lineno, KINDS[node.func.id], text


def words(text):
    """Returns a text's key words: its longer words, without their ending."""
    return {word.rstrip("s") for word in re.findall("[a-z]{3,}", text.lower())} - set(PLAIN.split())


def test_every_message_links_to_a_paragraph_that_speaks_of_it():
    told, unlike, without = 0, [], []
    for path, line, code, text in messages():
        if path.startswith(("core/testing", *HELPERS)) or len(words(text)) < 2:
            continue
        named = re.search(r"docs/[\w-]+\.md(#[\w-]+)?", text)
        page = named[0] if named else page_of([path], code)
        told += 1
        if page is None:
            without.append(path)
        elif not words(f"{text} {PurePath(path).stem if path.startswith(PARTS) else ''}") & words(section(page)):
            unlike.append(f"{path}:{line} {page} {text}")
    assert told > 600
    assert unlike == []
    assert set(without) == WITHOUT


@pytest.mark.parametrize("page", sorted({*PAGES.values(), *PLACES.values()}))
def test_pages_that_messages_name_exist(page):
    assert section(page).strip()
