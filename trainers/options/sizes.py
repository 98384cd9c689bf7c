"""The largest number of anything, and numbers of bytes as people read them."""

MOST = 2**31 - 1  # of anything: steps times examples are then counted in 64 bits


def size(count: float) -> str:
    """Returns a number of bytes in the unit that fits.

    >>> size(1000), size(3 * 2**30 // 2), size(1.5 * 2**40)
    ('1000 bytes', '1.5 GiB', '1.5 TiB')
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"
