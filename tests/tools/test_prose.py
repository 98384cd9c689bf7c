"""The measure of hard sentences finds what it says, in pages and in code."""

import pytest

from tools import prose

HARD = {
    "What a gradient takes is its operation's module's.": ["headless subject"],
    "Of whole numbers the first.": ["fronted of"],
    "By a trace the run knows of it.": ["fronted by", "taken for"],
    "So it is within a fifth of what a process takes.": ["so it is"],
    "The result hangs on the seed.": ["hangs on"],
    "A run goes on from there.": ["goes on"],
    "It has a folder of its own.": ["one's own"],
    "It serves nobody.": ["nobody"],
    "It is measured beside Keras.": ["beside"],
    "Where it is killed before that, nothing is lost.": ["where for if"],
    "The file lies in the folder.": ["lies"],
    "The user is told so.": ["is told"],
    "The run passes over bad rows.": ["passes over"],
    "They agree to the last bits.": ["last bits"],
    "The figures are equal.": ["figures"],
    "It holds nothing but loopback.": ["but for"],
    "One; two; three of them.": ["semicolons"],
    " ".join(["word"] * 31) + ".": ["long"],
}
PLAIN = [
    "What is a phase?",
    "Of course it resumes.",
    "By default the run resumes.",
    "The result depends on the seed.",
    "Raises a `ConfigurationError` that names it.",
    "See figure 3 of the paper.",
    "The next two lines lie about the shape.",
    " ".join(["word"] * 30) + ".",
]


@pytest.mark.parametrize("sentence", HARD)
def test_hard_sentence_is_found_by_its_rule(sentence):
    assert prose.hits(sentence) == HARD[sentence]


@pytest.mark.parametrize("sentence", PLAIN)
def test_plain_sentence_is_left_alone(sentence):
    assert prose.hits(sentence) == []


def test_code_and_links_count_as_one_word_each():
    assert prose.sentences("- See [how it lies](lies.md), and `beside`.  Then stop it now.") == [
        "See how it lies, and `x`.",
        "Then stop it now.",
    ]


def test_code_of_a_page_and_its_tables_are_left_out():
    page = "# Title\n\nOne text.\n\n```sh\nOne command.\n```\n\n| a | b |\n\n- A point.\n- Another."
    assert [text for _, text in prose.of_page(page) if text.strip()] == ["\nOne text.", "- A point.", "- Another."]


def test_docstrings_comments_and_errors_are_read():
    function = 'def f(x):\n    """Does it."""\n    raise ValueError(f"`{x}` is bad.")\n'
    source = f'"""A module."""\n\n# one\n# comment\n\n\n{function}'
    found = [(kind, text) for kind, text in prose.of_code(source) if text]
    assert found == [
        ("docstring", "A module."),
        ("docstring", "Does it."),
        ("error", "`X` is bad."),
        ("comment", "one comment"),
    ]


@pytest.mark.parametrize("bad", ["Of these the run keeps one.", "The run hangs on it. " * 60])
def test_measure_fails_for_what_is_never_written_and_for_too_many_hits(bad, tmp_path, monkeypatch, capsys):
    (tmp_path / "page.md").write_text(bad)
    monkeypatch.setattr(prose.subprocess, "check_output", lambda *_, **__: str(tmp_path / "page.md"))
    assert prose.main([], 1) == 1
    assert "rewrite" in capsys.readouterr().out or bad.startswith("The")
    (tmp_path / "page.md").write_text("The run resumes.")
    assert prose.main([], 1) == 0
