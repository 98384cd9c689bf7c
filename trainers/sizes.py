"""Numbers of bytes as people read them."""


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
