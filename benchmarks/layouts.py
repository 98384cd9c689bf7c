"""The mesh layouts of `configs/`, read from their gin files: tests and benchmarks use what users get."""

from pathlib import Path

from trainers import configurables as configurables  # registers what the files name
from trainers.gin_audit.audit import read
from trainers.gin_audit.statements import Macro

CHECKOUT = Path(__file__).resolve().parent.parent


def shipped(name: str, parameter: str = "layouts", *, table: str = "-,-") -> list[tuple[str, str]]:
    """Returns `mesh.<parameter>` of `configs/runtime/<name>.gin`, with the given layout of the token table."""
    configuration = read([str(CHECKOUT / "configs" / "runtime" / f"{name}.gin")], [], search=[CHECKOUT])
    bound = {f"{b.selector}.{b.parameter}": b.value for b in configuration.bindings}
    return [
        (str(pattern), table if isinstance(layout, Macro) else str(layout))
        for pattern, layout in bound[f"mesh.{parameter}"]
    ]
