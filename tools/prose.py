"""Counts sentences that are hard to read, in pages, docstrings, comments and error texts.

    python -m tools.prose                       # a table of areas
    python -m tools.prose --worst=20 core docs  # and the sentences to look at first

Each rule is a pattern over sentences; a hit is a place to look at, not a fault. Exit code 1 means that an area has more
than `MOST` hits per thousand sentences, or that a sentence matches a rule of `NEVER`.
"""

import argparse
import ast
import collections
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

MOST = 40  # hits per thousand sentences of an area
LONG = 30  # words
SMALL = 60  # sentences: an area below that is counted, not judged

NEVER = {
    "headless subject": r"(?-i:^(What|Who|Whoever|Whatever)\b(?!.*\?$))",
    "fronted of": r"(?-i:^Of (?!course))",
}
RULES = NEVER | {
    "fronted by": r"(?-i:^By (?!default|hand))",
    "so it is": r"\bso it is\b|\bso, (one|it|that)\b|^so is\b",
    "hangs on": r"\bhangs? on\b",
    "goes on": r"\bgo(es)? on (from|by|as|with|where|in)\b|\bgo(ing|ne) on\b",
    "one's own": r"\bone's own\b|\bof (its|their|one's) own\b|\bof yours\b",
    "nobody": r"\bnobody\b|\bno one\b",
    "beside": r"\bbeside\b",
    "comes of": r"\bcomes? (of|by|again|about)\b|\bcame of\b",
    "where for if": r"(?-i:^Where (it|that|one|this|there|they|nothing|none|no)\b)",
    "taken for": r"\btaken for\b|\btakes? part\b|\bknows? of\b",
    "lies": r"\blies?\b(?! (about|to))",
    "is told": r"\b(is|are) (told|said|asked|handed|given to)\b",
    "there to": r"\bthere (is|are) to\b|\bis there\b",
    "passes over": r"\bpass(es|ed)? over\b|\blearn(s|t)? by heart\b",
    "last bits": r"\blast bits\b",
    "figures": r"\bfigures?\b(?! [0-9])",
    "as many as": r"\bas (many|much|long|far) as there (is|are)\b",
    "but for": r"\b(but for|can but|all but|nothing but)\b",
    "long": rf"^(\S+\s+){{{LONG},}}\S",
    "semicolons": r";.*;",
}
PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in RULES.items()}


def hits(sentence: str) -> list[str]:
    """Returns the names of the rules that a sentence matches."""
    return [name for name, pattern in PATTERNS.items() if pattern.search(sentence)]


def sentences(text: str) -> list[str]:
    """Splits a paragraph, with `x` for each piece of code and the words of links for links."""
    text = re.sub(r"`[^`]*`", "`x`", " ".join(text.split()))
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^(?:[-*]|\d+\.)\s+", "", text).replace("**", "")
    return [part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z`(])", text) if len(part.split()) > 2]


def of_page(text: str) -> Iterator[tuple[str, str]]:
    """Yields the paragraphs of a Markdown page, without code, tables, headings and pictures."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||#|!\[|    )", line)]
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines)):
        yield "page", part


def of_code(source: str) -> Iterator[tuple[str, str]]:
    """Yields docstrings' paragraphs, comments, and the longest text of each error that is raised."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for part in re.split(r"\n\s*\n", re.sub(r"\n {4,}.*", "", ast.get_docstring(node) or "")):
                yield "docstring", part
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield "error", max((_text(part) for part in ast.walk(node.exc)), key=len)
    yield from (("comment", comment) for comment in _comments(source))


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _comments(source: str) -> Iterator[str]:
    """Yields comments, those of consecutive lines as one."""
    run: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            word = token.string.lstrip("# ").strip()
            if not re.match(r"noqa|type:|!|-{3,}|pragma", word):
                run.append(word)
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) and run:
            yield " ".join(run)
            run = []


def area(path: Path) -> str:
    """Returns the folder that a file counts for: two levels deep in the packages."""
    folders = path.parts[:-1]
    if path.suffix == ".md":
        return "docs" if folders[:1] == ("docs",) else "other pages"
    return "/".join(folders[:2] if folders[:1] in (("core",), ("trainers",)) else folders[:1]) or "other pages"


def main(paths: Iterable[str], worst: int) -> int:
    """Prints the table and the worst sentences; returns the exit code."""
    listed = subprocess.check_output(["git", "ls-files", "-z", *paths], text=True).split("\0")
    total: collections.Counter[str] = collections.Counter()
    found: collections.Counter[str] = collections.Counter()
    never: list[str] = []
    hard = []
    for path in (Path(name) for name in listed if name.endswith((".md", ".py"))):
        if not path.exists():
            continue
        texts = of_page if path.suffix == ".md" else of_code
        for kind, text in texts(path.read_text()):
            for sentence in sentences(text):
                total[area(path)] += 1
                rules = hits(sentence)
                found[area(path)] += len(rules)
                if rules:
                    hard.append((len(rules) + len(sentence.split()) / LONG / 2, f"{path}: {kind}: {rules}: {sentence}"))
                if set(rules) & set(NEVER):
                    never.append(f"{path}: {kind}: {sentence}")
    exceeded = []
    for name in sorted(total):
        per_thousand = 1000 * found[name] / total[name]
        print(f"{name:<24}{total[name]:>8} sentences{found[name]:>6} hits{per_thousand:>6.0f} per thousand")
        if per_thousand > MOST and total[name] >= SMALL:
            exceeded.append(name)
    for _, text in sorted(hard, reverse=True)[:worst]:
        print(text)
    for text in never:
        print(f"rewrite: {text}")
    if exceeded:
        print(f"more than {MOST} hits per thousand sentences: {', '.join(exceeded)}")
    return int(bool(exceeded or never))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="folders and files (all that git knows)")
    parser.add_argument("--worst", type=int, default=0, help="how many of the worst sentences are printed")
    args = parser.parse_args()
    sys.exit(main(args.paths, args.worst))
