"""Call signatures for the parts page, without types, read from the code."""

import inspect
from collections.abc import Iterable
from typing import Any


def calls(package: Any, parts: Iterable[str]) -> str:
    """Returns a code block with the call of each part that the package exports, in the given order."""
    lines = [_call(name, getattr(package, name)) for name in dict.fromkeys(parts) if hasattr(package, name)]
    return "".join(["\n```text\n", *(f"{line}\n" for line in lines), "```\n"])


def _call(name: str, part: Any) -> str:
    """Returns one call; a metric state is made with its `of`."""
    if hasattr(part, "of"):
        name, part = f"{name}.of", part.of
    bare = inspect.signature(part).replace(return_annotation=inspect.Signature.empty)
    parameters = [x.replace(annotation=inspect.Parameter.empty) for x in bare.parameters.values()]
    return f"{name}{bare.replace(parameters=parameters)}"
