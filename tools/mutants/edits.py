"""Mutations of a statement: one small mistake each, planted by an edit of a few characters."""

import ast
import functools
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

COMPARISONS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "is": ("is not",),
    "is not": ("is",),
    "in": ("not in",),
    "not in": ("in",),
}
SIGNS = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*"}
OPERATORS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.FloorDiv: "//", ast.And: "and", ast.Or: "or",
}  # fmt: skip
# Calls whose first arguments commute, or whose swap raises an error at once, which any test would catch.
UNSWAPPED = re.compile(
    "isinstance|issubclass|hasattr|getattr|setattr|cast|TypeVar|NewType|zip|max|min|print|gcd|maximum|minimum|add"
    "|multiply|logical_and|logical_or|allclose|isclose|equal|not_equal"
)
TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
HEADED = (ast.If, ast.While, ast.For, ast.With, ast.Try, *SCOPES)


@dataclass(frozen=True)
class Mutant:
    """One mistake: its place, the lines of its statement, and the edit (byte offsets) that plants it."""

    key: str
    path: str
    kind: str
    scope: str  # the qualified name of the function; empty at import
    first: int
    last: int
    start: int
    end: int
    before: str
    after: str

    def planted(self, source: str) -> str:
        """Returns the source with this mistake; every other line keeps its number."""
        text = source.encode()
        return (text[: self.start] + self.after.encode() + text[self.end :]).decode()


def is_text(node: ast.stmt) -> bool:
    """Tells whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@functools.cache
def mutants(path: str, text: str) -> Sequence[Mutant]:
    """Returns every mutant of a source file."""
    planter = _Planter(path, text)
    planter.body(ast.parse(text).body, "")
    return planter.found


class _Planter:
    """Visits the statements of a file and collects their mutations."""

    def __init__(self, path: str, text: str):
        self.path, self.text = path, text.encode()
        self.begins = [0]
        for line in text.encode().split(b"\n"):
            self.begins.append(self.begins[-1] + len(line) + 1)
        self.found, self.seen = list[Mutant](), Counter[str]()

    def body(self, statements: Sequence[ast.stmt], scope: str, guard: str = "") -> None:
        for statement in statements:
            self.statement(statement, scope, guard)

    def statement(self, node: ast.stmt, scope: str, guard: str) -> None:
        if is_text(node) or isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert, ast.Match)):
            return
        header, words = self._header(node)
        if words.startswith("if ") and ("TYPE_CHECKING" in words or "__name__" in words):
            return
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(x, ast.Name) and x.id.startswith("__") for x in targets):
            return
        if isinstance(node, ast.Raise):  # a test may well match another revision's text
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            header, words = [], f"{guard}: raise {ast.unparse(error) if error else ''}"
        inner = f"{scope}.{node.name}".lstrip(".") if isinstance(node, SCOPES) else scope
        lines = (node.lineno, max([node.lineno, *(getattr(x, "end_lineno", 0) for x in header)]))
        if not isinstance(node, HEADED):
            lines = (node.lineno, node.end_lineno or node.lineno)
            if _droppable(node, scope):
                wraps = "\n" * (lines[1] - lines[0])
                self._add("dropped", node, f"pass{wraps}", scope, lines, words, 0)
        number = 0
        for root in header:
            for child, parents in _walk(root):
                number += 1
                for kind, (start, end), after in self._changes(child, parents):
                    self._add(kind, (start, end), after, scope, lines, words, number)
        for name in ("body", "handlers", "orelse", "finalbody"):
            for block in getattr(node, name, []) if isinstance(node, HEADED) else []:
                self.body(block.body if isinstance(block, ast.ExceptHandler) else [block], inner, words)

    def _header(self, node: ast.stmt) -> tuple[list[ast.AST], str]:
        """Returns the expressions of a statement without its body, and its text."""
        if isinstance(node, (ast.If, ast.While)):
            return [node.test], f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
        if isinstance(node, ast.For):
            return [node.iter], f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        if isinstance(node, ast.With):
            items: list[ast.AST] = [item.context_expr for item in node.items]
            return items, f"with {', '.join(map(ast.unparse, items))}"
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defaults = [x for x in (*node.args.defaults, *node.args.kw_defaults) if x]
            return list(defaults), f"def {node.name}({', '.join(map(ast.unparse, defaults))})"
        if isinstance(node, (ast.ClassDef, ast.Try)):
            return [], f"{type(node).__name__} {getattr(node, 'name', '')}"
        if isinstance(node, ast.AnnAssign):
            return [node.value] if node.value else [], ast.unparse(node)
        return [node], ast.unparse(node)

    def _changes(self, node: ast.AST, parents: Sequence[ast.AST]) -> Iterator[tuple[str, tuple[int, int], str]]:
        if not hasattr(node, "end_lineno"):  # operators, comprehensions
            return
        span = self._span(node)
        if isinstance(node, ast.Constant):
            for kind, after in _constants(node.value, parents):
                yield kind, span, after
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
                for after in COMPARISONS[OPERATORS[type(op)]]:
                    yield from self._between("comparison", left, OPERATORS[type(op)], right, after)
        elif isinstance(node, ast.BoolOp):
            word = OPERATORS[type(node.op)]
            yield from self._between(
                "comparison", node.values[0], word, node.values[1], {"and": "or", "or": "and"}[word]
            )
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            kind, sign = ("comparison", r"not\b\s*") if isinstance(node.op, ast.Not) else ("sign", "-")
            gap = self.text[span[0] : self._span(node.operand)[0]]
            if b"#" not in gap:
                yield kind, (span[0], span[0] + len(gap)), re.sub(sign, "", gap.decode(), count=1)
        elif isinstance(node, ast.BinOp) and OPERATORS.get(type(node.op)) in SIGNS:
            word = OPERATORS[type(node.op)]
            texts = any(isinstance(x, TEXTS) or _is_str(x) for x in (node.left, node.right))
            if not texts and not (word == "/" and "Path" in ast.unparse(node)):
                yield from self._between("sign", node.left, word, node.right, SIGNS[word])
        elif isinstance(node, ast.AugAssign) and OPERATORS.get(type(node.op)) in SIGNS:
            word = OPERATORS[type(node.op)]
            if not isinstance(node.value, TEXTS) and not _is_str(node.value):
                yield from self._between("sign", node.target, f"{word}=", node.value, f"{SIGNS[word]}=")
        elif isinstance(node, ast.Call):
            yield from self._calls(node)
        elif isinstance(node, ast.Slice):
            for bound in (node.lower, node.upper):
                if bound and not isinstance(bound, (ast.Constant, ast.UnaryOp)):
                    yield "off by one", self._span(bound), f"({self._text(bound)}) + 1"

    def _calls(self, node: ast.Call) -> Iterator[tuple[str, tuple[int, int], str]]:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name == "range" and not isinstance(last := node.args[min(1, len(node.args) - 1)], ast.Constant):
            yield "off by one", self._span(last), f"({self._text(last)}) - 1"
        if UNSWAPPED.fullmatch(name) or any(isinstance(x, ast.Starred) for x in node.args):
            return
        for one, other in zip(node.args, node.args[1:], strict=False):
            between = self.text[self._span(one)[1] : self._span(other)[0]].decode()
            if self._text(one) != self._text(other) and "#" not in between:
                span = (self._span(one)[0], self._span(other)[1])
                yield "swapped", span, f"{self._text(other)}{between}{self._text(one)}"

    def _between(
        self, kind: str, left: ast.AST, word: str, right: ast.AST, after: str
    ) -> Iterator[tuple[str, tuple[int, int], str]]:
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self.text[start:end].decode()
        pattern = r"\s+".join(map(re.escape, word.split()))
        if "#" not in gap and re.search(pattern, gap):
            yield kind, (start, end), re.sub(pattern, lambda _: after, gap, count=1)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        at = self.begins[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return at, self.begins[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.text[start:end].decode()

    def _add(
        self,
        kind: str,
        where: ast.AST | tuple[int, int],
        after: str,
        scope: str,
        lines: tuple[int, int],
        words: str,
        number: int,
    ) -> None:
        start, end = where if isinstance(where, tuple) else self._span(where)
        told = f"{self.path}\n{scope}\n{words}\n{kind} {number} {' '.join(after.split())}"
        self.seen[told] += 1
        key = hashlib.sha256(f"{told}\n{self.seen[told]}".encode()).hexdigest()[:12]
        before = self.text[start:end].decode()
        self.found.append(Mutant(key, self.path, kind, scope, *lines, start, end, before, after))


def _is_str(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _droppable(node: ast.stmt, scope: str) -> bool:
    """Tells whether a program without this statement probably still runs."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return bool(scope) and "super()" not in ast.unparse(node)
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Name):  # given anew, of itself
            again = any(isinstance(x, ast.Name) and x.id == target.id for x in ast.walk(node.value))
            return again and bool(scope)
        own = scope.endswith("__init__") and ast.unparse(target).startswith("self.")
        return isinstance(target, (ast.Attribute, ast.Subscript)) and bool(scope) and not own
    return isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break))


def _constants(value: object, parents: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yields kinds and texts of replacements for a constant."""
    if isinstance(value, bool):
        yield "constant", str(not value)
    elif isinstance(value, float) and math.isfinite(value):
        yield "constant", repr(1.0 if value == 0 else value * (1000 if abs(value) < 1e-4 else 2))
    elif isinstance(value, int):
        near = parents[-2] if isinstance(parents[-1], ast.UnaryOp) and len(parents) > 1 else parents[-1]
        counts = isinstance(near, ast.Call) and ast.unparse(near.func) == "range"
        sums = isinstance(near, ast.BinOp) and isinstance(near.op, (ast.Add, ast.Sub))
        if counts or sums or isinstance(near, (ast.Subscript, ast.Slice, ast.Compare)):
            yield "off by one", str(value + 1)
        else:
            yield "constant", str(1 - value if value in (0, 1) else value * 2)


def _walk(root: ast.AST, parents: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Yields the nodes of an expression with their parents, without texts and annotations."""
    if isinstance(root, (ast.JoinedStr, ast.arguments)):
        return
    yield root, parents or (root,)
    for name, value in ast.iter_fields(root):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, (*parents, root))
