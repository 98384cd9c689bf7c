"""`docs/questions.md` is correct: its blocks run in one process, and print the numbers in their comments."""

import re

import pytest

from tests.commands import CHECKOUT, fork_server
from tests.pages import session

PAGE = (CHECKOUT / "docs" / "questions.md").read_text()
QUESTIONS = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_blocks_print_what_the_page_shows(tmp_path):
    code, shown = session(PAGE)
    (tmp_path / "questions.py").write_text(code)
    done = fork_server().run(command="questions", cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == shown


def test_eleven_questions_have_headings_of_their_own():
    assert len(QUESTIONS) == len({heading for heading, _ in QUESTIONS}) == 11


@pytest.mark.parametrize(("heading", "text"), QUESTIONS, ids=[heading for heading, _ in QUESTIONS])
def test_question_has_a_recipe_and_ours_with_numbers_and_a_thread(heading, text):
    assert heading.endswith("?")
    recipe, ours = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert session(f"```python\n{recipe}```")[1]
    assert session(f"```python\n{ours}```")[1]
    assert re.search(r"https://github.com/\S+/(issues|pull)/\d+", text)


@pytest.mark.parametrize("line", ["print(1)", "print(1) # 1", "print(\n    1\n)"])
def test_printed_line_without_its_number_is_refused(line):
    with pytest.raises(AssertionError, match="print"):
        session(f"```python\n{line}\n```")
