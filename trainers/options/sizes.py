"""The upper limit of integers in settings, and formatting of byte counts."""

MOST = 2**31 - 1  # limit of integers, so that steps times examples fit in 64 bits


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
