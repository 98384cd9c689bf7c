"""Writes tables into pages, between `<!-- table: NAME -->` and `<!-- end of NAME -->`: no figure is copied by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table as Markdown has it."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def written(text: str, tables: Mapping[str, str]) -> str:
    """Returns the page `text` with what it has of these tables as they are now."""
    for name, rows in tables.items():
        begin, end = f"<!-- table: {name} -->\n", f"<!-- end of {name} -->\n"
        if begin in text:
            before, rest = text.split(begin)
            _, after = rest.split(end)
            text = f"{before}{begin}\n{rows}\n{end}{after}"
    return text


def rows_in(text: str, name: str) -> list[list[str]]:
    """Returns the rows of a table as the page `text` has it."""
    _, rest = text.split(f"<!-- table: {name} -->\n")
    lines = rest.split(f"<!-- end of {name} -->\n")[0].strip().splitlines()[2:]  # below its head
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def write(folder: Path, tables: Mapping[str, str], pictures: Mapping[str, str]) -> None:
    """Brings all pages of `folder` up to date, and the pictures below it."""
    for page in sorted(folder.glob("*.md")):
        page.write_text(written(page.read_text(), tables))
    for name, picture in pictures.items():
        (folder / "pictures" / name).write_text(picture)
