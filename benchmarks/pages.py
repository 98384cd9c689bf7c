"""Writes tables into pages, between `<!-- table: NAME -->` and `<!-- end of NAME -->`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table as Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def written(text: str, tables: Mapping[str, str]) -> str:
    """Returns the page `text` with its tables replaced by those of the same names."""
    for name, rows in tables.items():
        begin, end = f"<!-- table: {name} -->\n", f"<!-- end of {name} -->\n"
        if begin in text:
            before, rest = text.split(begin)
            _, after = rest.split(end)
            text = f"{before}{begin}\n{rows}\n{end}{after}"
    return text


def rows_in(text: str, name: str) -> list[list[str]]:
    """Returns the rows of a table in the page `text`."""
    _, rest = text.split(f"<!-- table: {name} -->\n")
    lines = rest.split(f"<!-- end of {name} -->\n")[0].strip().splitlines()[2:]  # below its head
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def listed() -> list[Path]:
    """Returns the pages that may have tables: those of `docs/` and the notes."""
    return sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/notes/*.md")])


def write(tables: Mapping[str, str], pictures: Mapping[str, str] | None = None) -> None:
    """Updates the given tables in all pages, and the given pictures of `docs/`."""
    for page in listed():
        page.write_text(written(page.read_text(), tables))
    for name, picture in (pictures or {}).items():
        (ROOT / "docs" / "pictures" / name).write_text(picture)
