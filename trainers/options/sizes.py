"""Byte counts as text."""

import re

from core.errors import ConfigurationError, shown

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size(count: float) -> str:
    """Formats a number of bytes in a fitting unit.

    >>> size(1000), size(3 * 2**30 // 2), size(1.5 * 2**40)
    ('1000 bytes', '1.5 GiB', '1.5 TiB')
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"


def bytes_of_text(text: object, what: str) -> int:
    """Returns the bytes that a text such as "8 GiB" names. `what` names the setting in errors.

    >>> bytes_of_text("1.5 GiB", "a budget"), bytes_of_text("8GB", "a budget")
    (1610612736, 8000000000)
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+) ?([A-Za-z]+)", text.strip()) if isinstance(text, str) else None
    count = int(float(match[1]) * _UNITS.get(match[2], 0)) if match else 0
    if count < 1:
        raise ConfigurationError(
            f'{what} is {shown(text)}; give a positive number with a unit, as "8 GiB", "8GB" or "512 MiB". Units '
            f"are {', '.join(_UNITS)}."
        )
    return count
