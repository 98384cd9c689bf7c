"""Hooks are imported only when a configuration names them."""

import subprocess
import sys

import pytest

from tests.commands import CHECKOUT, environment
from trainers import hooks
from trainers.gin_audit import registry


def test_table_of_hooks_holds_every_hook_that_gin_knows() -> None:
    hooks.register()
    ours = {name for name, found in registry.configurables().items() if found.module.startswith("trainers.hooks")}
    assert {registry.short(name) for name in ours} <= {*hooks.FILES}
    assert all(getattr(hooks, name).__name__ == name for name in hooks.FILES)


PROGRAM = """
import sys
from trainers import hooks
for selector in ("hooks.norms.Norms", "Norm"):
    hooks.register((selector,))
    print(*{name.rpartition(".")[2] for name in sys.modules if name.startswith("trainers.hooks.")})
"""


@pytest.mark.long
def test_hook_is_imported_that_a_selector_names_and_all_are_for_a_name_that_gin_does_not_know() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=CHECKOUT, env=environment(), capture_output=True, text=True, check=True
    )
    one, every = ({*line.split()} for line in done.stdout.splitlines())
    assert one == {"norms"}
    assert every >= {*hooks.FILES.values()}
