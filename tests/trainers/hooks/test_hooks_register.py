"""Hooks are imported only when a configuration names them."""

import subprocess
import sys

from tests.commands import CHECKOUT, environment
from trainers import hooks
from trainers.gin_audit import registry


def test_table_of_hooks_holds_every_hook_that_gin_knows() -> None:
    hooks.register()
    ours = {name for name, found in registry.configurables().items() if found.module.startswith("trainers.hooks")}
    assert {registry.short(name) for name in ours} <= {*hooks.FILES}
    assert all(getattr(hooks, name).__name__ == name for name in hooks.FILES)


def imported_for(*selectors: str) -> set[str]:
    """Returns the files of hooks that a new process imports for these selectors."""
    program = (
        f"import sys; from trainers import hooks; hooks.register({selectors}); "
        "print(*{name.rpartition('.')[2] for name in sys.modules if name.startswith('trainers.hooks.')})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, env=environment(), capture_output=True, text=True, check=True
    )
    return {*done.stdout.split()}


def test_hook_is_imported_that_a_selector_names() -> None:
    assert imported_for("hooks.norms.Norms") == {"norms"}


def test_all_hooks_are_imported_for_a_name_that_gin_does_not_know() -> None:
    assert imported_for("Norm") >= {*hooks.FILES.values()}
