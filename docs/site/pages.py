"""Makes the pages of the site that no file in `docs/` is: its front page and the reference.

The front page is the README. The reference has a page for each package, with all that it exports, from docstrings and
signatures as they stand in the code; none of it is imported for that. `<!-- made: NAME -->` in a page is replaced by
what `NAME.py`, next to this file, makes from the code.
"""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what the reference has can be asked without it
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

CHECKOUT = Path(__file__).resolve().parents[2]
# A module without `__all__`: everything in it that doesn't begin with an underscore is public.
MODULES = (
    "core/module.py",
    "core/casts.py",
    "core/random.py",
    "core/initializers.py",
    "core/errors.py",
    "core/losses/adversarial.py",
)
REDIRECTS = {  # a page that went away: where its readers find the same now
    "asynchronous.md": "choose-a-strategy.md#asynchronous-parameter-servers",
    "bespoke-loop.md": "cookbook.md#a-custom-loop-from-the-pieces",
    "diagnosis.md": "make-it-fast.md#diagnose",
    "dry-run.md": "fit-into-memory.md#estimate-memory",
    "evaluation.md": "use-a-run.md#evaluate",
    "export.md": "use-a-run.md#export",
    "hooks.md": "runs.md#hooks",
    "inner-loops.md": "cookbook.md#maml-gradients-through-gradients",
    "language-models.md": "cookbook.md#language-model",
    "local-steps.md": "choose-a-strategy.md#local-steps",
    "many-replicas.md": "choose-a-strategy.md#one-machine-mirrored",
    "model-parallel.md": "choose-a-strategy.md#a-mesh-tensor-parallel",
    "never-lose-a-run.md": "checkpoints.md",
    "scaling-model.md": "performance.md#a-model-of-scaling",
    "seeing.md": "runs.md",
    "streams.md": "input.md#streams",
    "warm-starts.md": "use-a-run.md#warm-start-and-fine-tune",
    "what-went-wrong.md": "troubleshooting.md",
    "your-own-step.md": "gans.md#the-step",
}
CONCEPTS = ("Task", "Update", "Compute", "Loss", "Rng", "Module", "Transform", "Source", "Hook", "Backend", "Exchange")
MADE = re.compile(r"<!-- made: (\w+) -->")
LINK = re.compile(r"\[([^]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Lists the pages of the reference behind its first one."""
    assert config.nav is not None
    (pages,) = (section["Reference"] for section in config.nav if "Reference" in section)
    pages += [{name: f"reference/{name}.md"} for name in public()]
    return config


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Adds the pages that are made."""
    from mkdocs.structure.files import File

    made = {"index.md": (CHECKOUT / "README.md").read_text("utf-8")} | dict(reference())
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Leads links to where the site has their pages; of those to other files of the checkout only the words remain."""
    uri = page.file.src_uri
    folder = CHECKOUT if uri == "index.md" else (CHECKOUT / "docs" / uri).parent

    def led(found: re.Match[str]) -> str:
        words, path, anchor = found[1], found[2], found[3] or ""
        target = (folder / path).resolve()
        if target == CHECKOUT / "README.md":
            return f"[{words}](index.md{anchor})"
        if not target.is_relative_to(CHECKOUT / "docs"):
            return found[0] if files.get_file_from_path(path) else words
        return f"[{words}]({target.relative_to(folder if uri != 'index.md' else CHECKOUT / 'docs')}{anchor})"

    return LINK.sub(led, MADE.sub(lambda found: maker(found[1]).text(), markdown))


def maker(name: str) -> ModuleType:
    """Returns the module next to this file that makes a part of a page; `mkdocs` doesn't look for it here."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_post_build(config: "MkDocsConfig") -> None:
    """Writes a page for each old address that leads to the new one."""
    for old, new in REDIRECTS.items():
        (Path(config.site_dir) / old).with_suffix(".html").write_text(redirect(new) + "\n", "utf-8")


def redirect(new: str) -> str:
    """Returns a page that sends a reader to page `new`, which may have an anchor.

    >>> print(redirect("runs.md#profiles"))
    <!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=runs.html#profiles">
    <a href="runs.html#profiles">This page has moved.</a>
    """
    address = new.replace(".md", ".html")
    refresh = f'<meta http-equiv="refresh" content="0; url={address}">'
    return f'<!doctype html><meta charset="utf-8">{refresh}\n<a href="{address}">This page has moved.</a>'


def reference() -> Iterator[tuple[str, str]]:
    """Yields the pages of the reference: their names, and their texts as `mkdocstrings` reads them.

    A name that two packages export is described on the page of the first. The other page links to it.
    """
    packages, described = public(), set[str]()
    index = ["# API", "", "All public names, by concept and by package.", "", "| concept | |", "| --- | --- |"]
    for concept in CONCEPTS:
        name, place = next((name, names[concept]) for name, (_, names) in packages.items() if concept in names)
        index.append(f"| [`{concept}`]({name}.md) | `{place}` |")
    index += ["", "| package | |", "| --- | --- |"]
    for name, (about, names) in packages.items():
        index.append(f"| [`{name}`]({name}.md) | {about} |")
        entries = [f"## [`{x}`][{place}]" if place in described else f"::: {place}" for x, place in names.items()]
        described |= {*names.values()}
        yield f"reference/{name}.md", "\n\n".join([f"# `{name}`", about, *entries]) + "\n"
    yield "reference/index.md", "\n".join(index) + "\n"


def public() -> dict[str, tuple[str, dict[str, str]]]:
    """Returns the first sentence of each public package and module, and what it exports, with where that is found."""
    found = dict[str, tuple[str, dict[str, str]]]()
    packages = [path for top in ("core", "models", "trainers") for path in CHECKOUT.glob(f"{top}/**/__init__.py")]
    paths = [*packages, *(CHECKOUT / name for name in MODULES)]
    for path in sorted(paths):
        tree = ast.parse(path.read_text("utf-8"))
        name = ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")
        exported = _exported(tree, name) if path.name == "__init__.py" else _defined(tree, name)
        if exported:
            about = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
            found[name] = about, {member: exported[member] for member in sorted(exported, key=str.lower)}
    return found


def _exported(tree: ast.Module, package: str) -> dict[str, str]:
    """Returns what a package lists in `__all__`, or imports when it is asked for, and which module has it."""
    found_in = dict[str, str]()  # a function may be called as its module is, and then the package's name is both
    on_demand = dict[str, dict[str, str]]()  # tables of the names that `__getattr__` imports, with their modules
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found_in |= {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            found_in[node.name] = f"{package}.{node.name}"
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        if isinstance(node.value, ast.Dict):
            modules: dict[str, str] = ast.literal_eval(node.value)
            on_demand[node.targets[0].id] = {name: f"{package}.{file}.{name}" for name, file in modules.items()}
        elif node.targets[0].id == "__all__" and isinstance(node.value, ast.List):
            starred = [
                x.value.id for x in node.value.elts if isinstance(x, ast.Starred) and isinstance(x.value, ast.Name)
            ]
            listed = [ast.literal_eval(x) for x in node.value.elts if not isinstance(x, ast.Starred)]
            tables = {name: place for table in starred for name, place in on_demand[table].items()}
            return tables | {name: found_in[name] for name in listed if name in found_in}
    return {}


def _defined(tree: ast.Module, module: str) -> dict[str, str]:
    kinds = ast.ClassDef | ast.FunctionDef
    names = [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return {name: f"{module}.{name}" for name in names}
