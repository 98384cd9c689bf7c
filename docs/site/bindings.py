"""Makes the page of all bindings from the code: each gin configurable with its parameters, types and defaults."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
SECTIONS = {  # the first that a file's path begins with counts
    "trainers/hooks": "Hooks",
    "trainers": "The run",
    "models": "Tasks and networks",
    "core/data": "Sources of examples",
    "core/distribution": "Strategies",
    "core/parallel": "Strategies",
    "core/layers": "Tasks and networks",
    "core/task": "Placements",
    "core/optimizers": "Optimizers, transforms and schedules",
    "core/losses": "GAN objectives",
    "core/weights": "Weights",
}
REQUIRED = "gin.REQUIRED"


class Parameter(NamedTuple):
    name: str
    type: str
    default: str


class Configurable(NamedTuple):
    name: str
    module: str
    about: str
    parameters: list[Parameter]


def configurables() -> Iterator[Configurable]:
    """Yields each configurable of the project, by file and line."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in _files()}
    classes = {node.name: node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and (name := _bound_name(node)):
                about = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
                module = ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")
                yield Configurable(name, module, about, list(_parameters(node, classes)))


def _files() -> list[Path]:
    return sorted(path for top in ("core", "models", "trainers") for path in (CHECKOUT / top).rglob("*.py"))


def _bound_name(node: ast.ClassDef | ast.FunctionDef) -> str | None:
    """Returns the name by which gin knows it, if gin does."""
    for decorator in node.decorator_list:
        if ast.unparse(decorator) == "gin.configurable":
            return node.name
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "gin.configurable":
            given = decorator.args[0] if decorator.args else None
            return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else node.name
    return None


def _parameters(node: ast.ClassDef | ast.FunctionDef, classes: dict[str, ast.ClassDef]) -> Iterator[Parameter]:
    if isinstance(node, ast.ClassDef):
        made_by = next((x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"), None)
        if made_by is None:
            fields = [x for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)]
            for base in () if fields else (ast.unparse(x).rpartition(".")[2] for x in node.bases):
                if base in classes:
                    yield from _parameters(classes[base], classes)
            for x in fields:  # of a dataclass
                default = ast.unparse(x.value) if x.value else REQUIRED
                yield Parameter(ast.unparse(x.target), ast.unparse(x.annotation), default)
            return
        node = made_by
    schedulable = any(ast.unparse(decorator) == "schedulable" for decorator in node.decorator_list)
    given, defaults = node.args.args, node.args.defaults
    for arg, default in [
        *zip(given, [None] * (len(given) - len(defaults)) + defaults, strict=True),
        *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
    ]:
        if arg.arg not in ("self", "cls", "rng"):  # `rng` is the experiment's to give
            annotation = ast.unparse(arg.annotation) if arg.annotation else ""
            annotation += " | Schedule" if schedulable and annotation == "float" else ""
            yield Parameter(arg.arg, annotation, ast.unparse(default) if default else REQUIRED)
    if node.args.kwarg:
        yield Parameter(f"**{node.args.kwarg.arg}", "", "")


def text() -> str:
    """Returns the sections of the page."""
    found = sorted(configurables(), key=lambda one: one.name.lower())
    lines = list[str]()
    for title in dict.fromkeys(SECTIONS.values()):
        lines += [f"## {title}", ""]
        for one in found:
            path = one.module.replace(".", "/")
            if next(section for start, section in SECTIONS.items() if path.startswith(start)) == title:
                lines += [f"### {one.name}", "", f"{one.about} (`{one.module}`)", ""]
                if one.parameters:
                    lines += ["| binding | type | default |", "| --- | --- | --- |"]
                    lines += [_row(one.name, parameter) for parameter in one.parameters]
                    lines.append("")
    return "\n".join(lines)


def _row(name: str, parameter: Parameter) -> str:
    if parameter.name.startswith("**"):
        return f"| `{parameter.name}` | | passed on |"
    default = "required" if parameter.default == REQUIRED else f"`{parameter.default}`"
    kind = f"`{parameter.type}`" if parameter.type else ""
    return f"| `{name}.{parameter.name}` | {kind} | {default} |"
