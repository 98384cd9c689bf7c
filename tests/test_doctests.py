"""Examples in docstrings are executed."""

import doctest
import importlib
import pkgutil

import pytest

import core
import models
import trainers

MODULES = [
    module.name
    for package in (core, models, trainers)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    failures, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0
