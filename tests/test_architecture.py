"""The architecture page is true: it opens with the plain step, and what it names is there."""

import re

import pytest

from tests.commands import CHECKOUT

PAGE = (CHECKOUT / "docs" / "architecture.md").read_text()
KINDS = ("layer", "loss", "metric", "optimizer", "task", "mode", "strategy", "source", "hook")


def rooms():
    """Folders of code in the checkout, two levels deep."""
    for package in ("core", "models", "trainers"):
        yield f"{package}/"
        for path in (CHECKOUT / package).iterdir():
            if (path / "__init__.py").exists():
                yield f"{package}/{path.name}/"


def pictured():
    """The rooms that the picture shows, in the same words."""
    (picture,) = re.findall(r"```\n(trainers/ .*?)```", PAGE, re.DOTALL)
    package = ""
    for line in picture.splitlines():
        for name in re.findall(r"(?:^| )(\w+/)(?=\s|$)", line):
            package = package if line.startswith(" ") else name
            yield name if name == package else f"{package}{name}"


def test_the_page_opens_with_the_plain_step():
    blocks = re.findall(r"(?:<!-- (.*) -->\n)?```", PAGE)
    assert blocks[0] == "from: core/testing/plain.py"  # and `test_docs` sees that it is that file


def test_the_picture_shows_every_room_and_no_other():
    assert sorted(pictured()) == sorted(rooms())


def test_imports_point_downwards_in_the_picture():
    order = list(pictured())
    for path in (x for package in ("core", "models", "trainers") for x in (CHECKOUT / package).glob("**/*.py")):
        here = room_of(path.relative_to(CHECKOUT).with_suffix("").parts)
        for name in re.findall(
            r"^\s*(?:from|import) ((?:core|models|trainers)\.[\w.]+)", path.read_text(), re.MULTILINE
        ):
            there = room_of(name.split("."))
            files_of_a_room = there.count("/") == 1 and here.startswith(there)  # `core/errors.py`: below all rooms
            inside = here.count("/") == 1 and there.startswith(here)  # `trainers/session.py` knows the rooms beside it
            assert files_of_a_room or inside or order.index(here) <= order.index(there), f"{path} imports {name}"


def room_of(parts):
    room = f"{parts[0]}/{parts[1]}/"
    return room if (CHECKOUT / room).is_dir() else f"{parts[0]}/"


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_thing_of_each_kind_has_a_place_and_a_test(kind):
    (line,) = re.findall(rf"^\| {kind}\b[^|]*\|.*$", PAGE, re.MULTILINE)
    _, _, written, known, tested, _ = line.split("|")
    for cell in (written, known, tested):
        paths = re.findall(r"`([\w/]+(?:/|\.py|\.md))`", cell)
        names = re.findall(r"`([A-Z_]{4,})`", cell)
        assert paths or names, f"the line of `{kind}` names no file in {cell!r}"
        assert all((CHECKOUT / path).exists() for path in paths), paths
        for name in names:
            files = [CHECKOUT / path for path in re.findall(r"`([\w/]+\.py)`", written + known + tested)]
            assert any(re.search(rf"^{name}\b.* = ", path.read_text(), re.MULTILINE) for path in files), name
