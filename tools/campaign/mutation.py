"""Mutations of valid input."""

import random

INTERESTING = (
    b"\0",
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"9" * 400,
    b"-1",
    b"1e999",
    b"[" * 3000,
    b"{",
    b'"',
    b"../../x",
)


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Changes parts: flips bits, removes, duplicates or moves pieces, makes numbers absurd."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        a, b = sorted(chance.randrange(len(found) + 1) for _ in range(2))
        b = min(b, a + chance.choice((1, 4, 64, 4096)))
        kind = chance.randrange(6)
        if kind == 0 and a < len(found):
            found[a] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[a:b]
        elif kind == 2:
            found[a:a] = found[a:b] * chance.choice((1, 2, 50))
        elif kind == 3:
            found[a:b] = chance.randbytes(b - a)
        elif kind == 4:
            found[a:b] = chance.choice(INTERESTING)
        else:
            del found[a:]
    return bytes(found)
