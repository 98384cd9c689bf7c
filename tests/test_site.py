"""Checks of the site of `docs/` that need no build; `.ci/run` builds it, and `python -m tools.browser` opens it."""

import ast
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from core import errors
from tests.commands import CHECKOUT
from tests.pages import section
from tests.trainers.test_messages import messages
from trainers import configurables, hooks
from trainers.gin_audit import registry

NAV = (CHECKOUT / "mkdocs.yml").read_text().partition("\nnav:")[2]


def _pages():
    found = importlib.util.spec_from_file_location("pages", CHECKOUT / "docs" / "site" / "pages.py")
    pages = importlib.util.module_from_spec(found)
    found.loader.exec_module(pages)
    return pages


SITE = _pages()
PUBLIC = SITE.public()


def test_every_page_is_listed_once():
    listed = re.findall(r"([\w-]+\.md)$", NAV, re.MULTILINE)
    pages = sorted(path.name for path in (CHECKOUT / "docs").glob("*.md"))
    assert sorted(name for name in listed if name != "index.md") == pages


def test_old_addresses_lead_to_paragraphs_that_exist(tmp_path):
    for old, new in SITE.REDIRECTS.items():
        assert not (CHECKOUT / "docs" / old).exists(), old
        assert section(f"docs/{new}").strip()
    SITE.on_post_build(SimpleNamespace(site_dir=tmp_path))
    for old, new in SITE.REDIRECTS.items():
        assert f'url={new.replace(".md", ".html")}"' in (tmp_path / old).with_suffix(".html").read_text()


@pytest.mark.parametrize("package", PUBLIC)
def test_the_reference_has_all_that_a_package_exports_with_its_docstring(package):
    about, names = PUBLIC[package]
    assert about.endswith((".", ":")), f"`{package}` doesn't say in a sentence what it is"
    module = importlib.import_module(package)
    if hasattr(module, "__all__"):
        assert sorted(names) == sorted(module.__all__)
    for name, place in names.items():
        found = getattr(module, name)
        home, _, own = place.rpartition(".")
        assert getattr(importlib.import_module(home), own) is found
        if inspect.isclass(found) or inspect.isfunction(found):
            assert inspect.getdoc(found), f"`{package}.{name}` has no docstring"
        else:
            alone = rf"^{own}(: .+?)? = |^def {own}\("  # mkdocstrings doesn't find `A, B = 1, 2`
            assert re.search(alone, inspect.getsource(importlib.import_module(home)), re.MULTILINE), f"`{place}`"


def test_reference_describes_no_module_in_place_of_what_it_exports():
    places = {place for _, names in PUBLIC.values() for place in names.values()}
    assert [place for place in places if (CHECKOUT / f"{place.replace('.', '/')}.py").exists()] == []


def test_reference_has_what_pages_import_from_a_module():
    exported = {place for _, names in PUBLIC.values() for place in names.values()}
    for page in [CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")]:
        if page.name == "architecture.md":  # shows a file of Tapeloop's own
            continue
        for home, names in re.findall(
            r"^from ((?:core|models|trainers)[\w.]*) import ([\w, ]+)$", page.read_text(), re.MULTILINE
        ):
            for name in names.split(", "):
                found = getattr(importlib.import_module(home), name, None)
                if inspect.isclass(found) or inspect.isfunction(found):
                    assert f"{inspect.unwrap(found).__module__}.{name}" in exported, (page.name, home, name)


def test_packages_with_public_names_are_in_the_reference():
    for path in [*CHECKOUT.glob("core/*/__init__.py"), *CHECKOUT.glob("models/*/__init__.py")]:
        if any(isinstance(node, ast.Assign) for node in ast.parse(path.read_text()).body):
            assert ".".join(path.parent.relative_to(CHECKOUT).parts) in PUBLIC


def made(name):
    """Returns a page of `docs/` as the site has it."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
    files = SimpleNamespace(get_file_from_path=lambda path: None)
    return SITE.on_page_markdown((CHECKOUT / "docs" / name).read_text(), page, None, files)


def test_each_error_that_the_code_makes_is_in_the_list_of_messages(monkeypatch):
    listed = SITE.maker("messages")
    found = list(listed.messages())
    listed.messages = lambda: found  # for the page, too: reading all code takes seconds
    monkeypatch.setattr(SITE, "maker", {"messages": listed}.__getitem__)
    entries = {(entry.file, entry.line): entry for entry in found}
    assert len(entries) > 700
    for file, line, code, text in messages():
        if len(re.findall("[a-z]{2,}", text)) > 4:  # words of its own, not another error's
            assert entries[file, line].code == code
    assert listed.exit_codes() == {
        name: kind.exit_code for name, kind in vars(errors).items() if "exit_code" in getattr(kind, "__dict__", ())
    }
    page = made("troubleshooting.md")
    lines = re.findall(r"^\| .* \| \d+ \| .* \|$", page, re.MULTILINE)
    assert len(lines) == len(found)
    assert all(len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) == 4 for line in lines), (
        "a `|` isn't escaped"
    )


def test_each_configurable_is_in_the_list_of_bindings():
    hooks.register()
    page = made("bindings.md")
    packages = (*(f"{package}." for package in configurables.__all__), "trainers.")
    known = [  # without those that docstrings' examples register
        selector
        for selector, found in registry.configurables().items()
        if found.module.startswith(packages) and Path(inspect.getfile(found.wrapped)).is_file()
    ]
    assert len(known) > 90
    for selector in known:
        name = selector.rpartition(".")[2]
        assert f"\n### {name}\n" in page
        for parameter, given in registry.signature(selector).parameters.items():
            if parameter != "rng":
                (line,) = re.findall(rf"^\| `{name}\.{parameter}` \|.*$", page, re.MULTILINE)
                assert line.endswith("| required |") == (given.required or given.default is registry.MISSING)


SEARCHED = [
    "MirroredStrategy", "MultiWorkerMirroredStrategy", "ParameterServerStrategy", "TPUStrategy", "data parallel",
    "tensor parallel", "mixed precision", "fine-tuning", "out of memory", "learning-rate schedule", "checkpointing",
    "early stopping", "gradient checkpointing", "multi-GPU", "Slurm", "Kubernetes",
]  # fmt: skip


def test_words_that_people_search_for_are_on_a_page():
    pages = [path.read_text().lower() for path in (CHECKOUT / "docs").glob("*.md") if path.name != "glossary.md"]
    assert [word for word in SEARCHED if not any(word.lower() in page for page in pages)] == []
