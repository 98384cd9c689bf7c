"""Runs the examples in docstrings."""

import doctest
import importlib
import importlib.util
import pkgutil
from pathlib import Path

import pytest

import core
import models
import trainers

MODULES = {
    module.name: importlib.util.find_spec(module.name)
    for package in (core, models, trainers)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
}
WITH_EXAMPLES = [
    name
    for name, found in MODULES.items()
    if any(">>> " in line and "+SKIP" not in line for line in Path(found.origin).read_text().splitlines())
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_docstring_examples(name):
    failures, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0 < tried


def test_every_module_can_be_imported():
    assert len(MODULES) > len(WITH_EXAMPLES) > 50
    for name in MODULES:
        importlib.import_module(name)
