"""Fields of classes of the core and of the loop are set in their own files: a reader finds every writer there."""

import ast
from collections.abc import Iterator, Mapping

from tests.test_house import sources


def set_from_outside(texts: Mapping[str, str], of: str = "") -> list[tuple[str, str]]:
    """Returns module and target of each assignment to a field whose class is declared in another of these files.

    The fields are those of modules whose names begin with `of`.
    """
    trees = {module: list(ast.walk(ast.parse(text))) for module, text in texts.items()}
    fields = {module: {name for node in nodes for name in fields_of(node)} for module, nodes in trees.items()}
    known = set().union(*(names for module, names in fields.items() if module.startswith(of)))
    return [
        (module, ast.unparse(node))
        for module, nodes in trees.items()
        for node in nodes
        if stored(node) and node.attr in known - fields[module] and not stored(node, "self")
    ]


def fields_of(node: ast.AST) -> Iterator[str]:
    """Yields the fields that a class declares, or that an assignment to `self` creates."""
    if isinstance(node, ast.ClassDef):
        yield from (x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name))
    elif stored(node, "self"):
        yield node.attr


def stored(node: ast.AST, name: str | None = None) -> bool:
    """Tells whether `node` assigns to an attribute, of the object called `name` if that is given."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
        return False
    return name is None or (isinstance(node.value, ast.Name) and node.value.id == name)


def test_no_field_of_core_is_set_from_outside() -> None:
    core = {module: text for module, text in sources().items() if module.startswith("core.")}
    assert len(core) > 200
    assert set_from_outside(core) == []


def test_no_field_of_the_loop_is_set_from_outside() -> None:
    trainers = {module: text for module, text in sources().items() if module.startswith("trainers.")}
    assert set_from_outside(trainers, of="trainers.loop.") == []


def test_a_field_set_from_outside_is_named() -> None:
    a = "class Pump:\n    def __init__(self):\n        self.speed = 1\n\ndef halt(pump):\n    pump.speed = 0"
    b = "def race(pump, clock):\n    pump.speed += 9\n    clock.time = 3"
    assert set_from_outside({"core.a": a, "core.b": b}) == [("core.b", "pump.speed")]
    assert set_from_outside({"core.a": a, "core.b": b}, of="core.b") == []
