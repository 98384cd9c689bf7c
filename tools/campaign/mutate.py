"""`python -m tools.campaign.mutate KIND SEED FIRST COUNT`: feeds mutated input to a reader, within limits.

Prints each mutant's number before trying it, so that a crash or a hang has a name. Then prints the problem, if the
reader neither accepted it nor raised an error for users, or used too much time or memory.
"""

import contextlib
import io
import random
import re
import resource
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from core.errors import TapeloopError
from tools.campaign.mutation import mutated
from tools.campaign.readers import KINDS

MEMORY = 256 << 20  # bytes that one mutant, of a few hundred, may use at its peak
MOST = 4 << 30  # bytes beyond the reader's peak for valid input, at which the kernel ends it
SECONDS = 20  # seconds for one mutant, which takes milliseconds normally


def main(kind: str, seed: int, first: int, count: int) -> None:
    """Tries mutants one after the other."""
    make, read = KINDS[kind]
    content, out = make(), sys.stdout

    def hang(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {SECONDS} s")

    signal.signal(signal.SIGALRM, hang)
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()) as printed:
        read(content, Path(scratch))  # first the valid input
        limit = _memory("VmData") + MOST
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        for number in range(first, first + count):
            print(number, file=out, flush=True)
            mutant = mutated(content, random.Random(f"{seed}/{kind}/{number}"))
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak (proc(5))
            before = _memory("VmRSS")
            signal.alarm(SECONDS)
            try:
                read(mutant, Path(scratch))
                said, outcome = "", "read"
            except TapeloopError as error:
                said, outcome = str(error), "refused"
            except BaseException as error:
                said, outcome = "", f"wrong: {type(error).__name__}: {str(error)[:300]!r}"
            signal.alarm(0)
            taken, said = _memory("VmHWM") - before, said + printed.getvalue()
            printed.truncate(printed.seek(0))
            if taken > MEMORY:
                outcome = f"wrong: took {taken:,} bytes"
            elif not said.replace("\n", "").encode(errors="backslashreplace").decode().isprintable():  # as streams do
                outcome = f"wrong: says what a terminal may obey: {said[:300]!r}"
            print(outcome, file=out, flush=True)


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
