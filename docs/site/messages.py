"""Makes the list of all error messages from the code, each with its exit code and the page that explains it."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
ESCAPED = re.compile(r"[|<>\[\]*_`]")  # which Markdown would read
PLAIN = {"ValueError": 2, "TypeError": 2}  # which end a run as a `ConfigurationError` does
TITLES = {
    "trainers": "The command and the run",
    "models": "Tasks that ship",
    "core/data": "Data",
    "core/task": "Tasks and step functions",
    "core/engine": "The training step",
    "core/distribution": "Strategies and replicas",
    "core/parallel": "Meshes, parameter servers, local steps",
    "core/cluster": "Several workers",
    "core/checkpoint": "Checkpoints",
    "core/weights": "First weights",
    "core/optimizers": "Optimizers and schedules",
    "core/layers": "Layers",
    "core": "Other",
}


class Message(NamedTuple):
    file: str
    line: int
    kind: str
    code: int
    text: str
    page: str | None


def messages() -> Iterator[Message]:
    """Yields each error that the project makes with a text of its own; `…` stands for what is put into it."""
    codes, page_of = exit_codes() | PLAIN, _explained()
    for path in sorted(path for top in ("core", "models", "trainers") for path in (CHECKOUT / top).rglob("*.py")):
        file = path.relative_to(CHECKOUT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            kind = getattr(node.func, "attr", getattr(node.func, "id", ""))
            text = " ".join(_text(node.args[0]).split())
            if kind in codes and re.search(r"[a-z]{2}", text):
                named = re.search(r"docs/[\w-]+\.md(#[\w-]+)?", text)
                page = named[0] if named else page_of([file], codes[kind])
                yield Message(file, node.lineno, kind, codes[kind], text, page)


def exit_codes() -> dict[str, int]:
    """Returns the classes of errors that end a run, with their exit codes."""
    tree = ast.parse((CHECKOUT / "core" / "errors.py").read_text("utf-8"))
    found = {}
    for node in tree.body:
        for line in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "exit_code":
                found[node.name] = ast.literal_eval(line.value)
    return found


def _explained():  # type: ignore[no-untyped-def]
    """Returns the function by which a run finds the page about its error; the package needn't be installed."""
    spec = importlib.util.spec_from_file_location("explained", CHECKOUT / "trainers" / "errors" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.page_of


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value) if isinstance(node.value, ast.IfExp) else "…"
    if isinstance(node, ast.IfExp):
        return _text(node.body) if not isinstance(node.body, ast.Constant) or node.body.value else _text(node.orelse)
    return "…"


def text() -> str:
    """Returns the list, by the part of the project that a message is of."""
    found: dict[str, list[Message]] = {title: [] for title in TITLES.values()}
    for message in messages():
        found[next(title for start, title in TITLES.items() if message.file.startswith(start))].append(message)
    lines = list[str]()
    for title, listed in found.items():
        lines += [f"### {title}", "", "| message | exit code | more |", "| --- | --- | --- |"]
        for one in sorted(listed, key=lambda one: one.text.lower()):
            lines.append(f"| {_cell(one.text)} | {one.code} | {_link(one.page)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(message: str) -> str:
    """Returns a message as a cell of a table, in which code stays code."""
    parts = re.split(r"(`[^`]*`)", message)  # every second one is code
    return "".join(part if i % 2 else ESCAPED.sub(r"\\\g<0>", part) for i, part in enumerate(parts))


def _link(page: str | None) -> str:
    return f"[{page.removeprefix('docs/').partition('.')[0]}]({page.removeprefix('docs/')})" if page else ""
