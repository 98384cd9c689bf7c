"""README and docs are correct: their files, snippets and commands run as printed."""

import re
import subprocess
from textwrap import indent

import pytest

from tests.commands import CHECKOUT, environment, fork_server
from tests.pages import PART, bash, blocks, commands, slug

PAGES = sorted(path.name for path in (CHECKOUT / "docs").glob("*.md"))
COOKBOOK = "cookbook.md"
PARTS = (CHECKOUT / "docs" / COOKBOOK).read_text().split("\n## ")
RECIPES = {slug(part.partition("\n")[0]): part for part in PARTS if "<!-- run -->" in part}
LONG = {
    "checkpoints.md",
    "choose-a-strategy.md",
    "first-run.md",
    "fit-into-memory.md",
    "from-gradient-tape.md",
    "gans.md",
    "input.md",
    "make-it-fast.md",
    "many-machines.md",
    "parts.md",
    "running.md",
    "runs.md",
    "testing-your-step.md",
    "upgrading.md",
    "use-a-run.md",
    "troubleshooting.md",
    "your-own-architecture.md",
}
READ = [CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md")] + [CHECKOUT / "docs" / name for name in PAGES]


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[pytest.mark.long] if p in LONG else []) for p in PAGES if p != COOKBOOK]
)
def test_page_runs_from_top_to_bottom(page, tmp_path):
    run_commands((CHECKOUT / "docs" / page).read_text(), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_runs_alone(recipe, tmp_path):
    run_commands(RECIPES[recipe], tmp_path)


def run_commands(text, folder):
    """`<!-- file: NAME -->` or `<!-- from: PATH -->` writes a block, `<!-- run -->` runs it, all in one new folder."""
    with fork_server().listening(folder / "listening") as python:
        for block in commands(text, folder, smaller=True):
            done = run_block(block.text, folder, python)
            assert done.returncode == 0, (block.text, done.stdout[-2000:], done.stderr[-2000:])


def run_block(text, folder, python):
    variables = {**environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    settings = {"env": variables, "capture_output": True, "text": True, "timeout": 600, "check": False}
    return subprocess.run(bash(text, python), cwd=folder, **settings)


@pytest.mark.parametrize("page", READ, ids=lambda page: page.name)
def test_block_is_the_file_that_it_comes_from(page):
    for block in blocks(page.read_text()):
        if block.source:
            same = block.text == (CHECKOUT / block.source).read_text()
            assert same, f"{page.name} shows another `{block.source}` than there is: copy the file into the page."


@pytest.mark.parametrize("page", READ, ids=lambda page: page.name)
def test_block_is_a_part_of_the_file_that_it_comes_from(page):
    for source, text in PART.findall(page.read_text()):
        whole = (CHECKOUT / source).read_text()
        assert text in whole or indent(text, "    ") in whole, f"{page.name} shows lines that `{source}` doesn't have."


def test_python_in_the_readme_runs_and_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (CHECKOUT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", text, re.DOTALL)
    assert blocks
    for block, shown in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
        printed = capsys.readouterr().out
        assert [numberless(line) for line in shown.splitlines()] == [numberless(line) for line in printed.splitlines()]


def numberless(line):
    return re.sub(r"[\d.,e+-]+", "0", re.sub(r"  +", " ", line))


def test_links_lead_somewhere():
    for page in [*READ, CHECKOUT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


def test_modes_and_flags_in_the_readme_exist():
    from trainers.main import MODES

    text = (CHECKOUT / "README.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert listed == set(MODES)


def test_exit_codes_are_the_same_on_every_page():
    from core.errors import EXIT_CODES

    listed = ", ".join(f"{code} {text}" for code, text in EXIT_CODES.items())
    assert f"Exit codes: {listed}." in " ".join((CHECKOUT / "README.md").read_text().split())
    table = (CHECKOUT / "docs" / "running.md").read_text()
    assert re.findall(r"^\| (\d+) \| (.*?) \|", table, re.MULTILINE) == [
        (str(code), text) for code, text in EXIT_CODES.items()
    ]


def test_ci_runs_the_commands_of_the_readme():
    greps = re.findall(r"\$\((grep .* README.md)\)", (CHECKOUT / ".ci" / "run").read_text())
    found = [subprocess.check_output(["bash", "-c", grep], cwd=CHECKOUT, text=True).strip() for grep in greps]
    train = "pip install -e . && python -m trainers.main --gin_file=configs/digits_mlp.gin"
    assert found == [train, "pip install -e '.[dev]' && pytest"]


def test_promises_name_tests_that_exist():
    table = (CHECKOUT / "docs" / "reliability.md").read_text().partition("## Promises")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| `(tests/\S+?\.py)::(test_\w+)` \|$", table, re.MULTILINE)
    assert len(rows) > 10
    for promise, file, name in rows:
        assert f"\ndef {name}(" in (CHECKOUT / file).read_text(), (promise, file, name)
    assert table.count("\n| ") == len(rows) + 2 * table.count("\n### "), "a line of a table names no test"
