"""The architecture page matches the code: it opens with the plain step, and its names and CONTRIBUTING's exist."""

import re

import pytest

from tests.commands import CHECKOUT
from tests.test_house import floor_of

PAGE = (CHECKOUT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (CHECKOUT / "CONTRIBUTING.md").read_text()
KINDS = ("layer", "loss", "metric", "optimizer", "task", "mode", "strategy", "source", "hook")


def rooms():
    """Returns the folders of code in the checkout, two levels deep."""
    for package in ("core", "models", "trainers"):
        yield f"{package}/"
        for path in (CHECKOUT / package).iterdir():
            if (path / "__init__.py").exists():
                yield f"{package}/{path.name}/"


def pictured():
    """Returns the packages in the picture, with its words."""
    (picture,) = re.findall(r"```\n(trainers/ .*?)```", PAGE, re.DOTALL)
    package = ""
    for line in picture.splitlines():
        for name in re.findall(r"(?:^| )(\w+/)(?=\s|$)", line):
            package = package if line.startswith(" ") else name
            yield name if name == package else f"{package}{name}"


def test_page_opens_with_the_engine_in_one_file_and_the_plain_step():
    blocks = [name for name in re.findall(r"(?:<!-- (.*) -->\n)?```", PAGE) if name]
    assert blocks[:2] == [
        "part of: examples/essence.py",
        "part of: core/testing/plain.py",
    ]  # `test_docs` compares the files


def test_the_picture_shows_every_room_and_no_other():
    assert sorted(pictured()) == sorted(rooms())


def test_rooms_that_import_stand_above_what_they_import():
    floors = [floor_of(room.strip("/").replace("/", ".")) for room in pictured() if room.count("/") == 2]
    assert floors == sorted(floors, reverse=True)  # `test_house` checks the imports against these


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_thing_of_each_kind_has_a_place_and_a_test(kind):
    (line,) = re.findall(rf"^\| {kind}\b[^|]*\|.*$", CONTRIBUTING, re.MULTILINE)
    _, _, written, known, tested, _ = line.split("|")
    for cell in (written, known, tested):
        paths = re.findall(r"`([\w/]+(?:/|\.py|\.md))`", cell)
        names = re.findall(r"`([A-Z_]{4,})`", cell)
        assert paths or names, f"the line of `{kind}` names no file in {cell!r}"
        assert all((CHECKOUT / path).exists() for path in paths), paths
        for name in names:
            files = [CHECKOUT / path for path in re.findall(r"`([\w/]+\.py)`", written + known + tested)]
            assert any(re.search(rf"^{name}\b.* = ", path.read_text(), re.MULTILINE) for path in files), name
