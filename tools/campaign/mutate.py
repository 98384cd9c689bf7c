"""`python -m tools.campaign.mutate KIND SEED FIRST COUNT`: hands a reader of ours mutated input, within bounds.

Each mutant's number is printed before it is tried, so that a crash or a hang has a name; then what was wrong with it,
if the reader neither took it nor refused it by an error that is meant for users, or took too much time or memory.
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

MEMORY = 256 << 20  # bytes that one mutant, of a few hundred, may cost at its peak
MOST = 4 << 30  # bytes beyond what the reader has taken for input in order, where the kernel ends it
SECONDS = 20  # for one mutant, which takes milliseconds if all is well


def main(kind: str, seed: int, first: int, count: int) -> None:
    """Tries mutants one after the other."""
    make, read = KINDS[kind]
    content, out = make(), sys.stdout

    def hang(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {SECONDS} s")

    signal.signal(signal.SIGALRM, hang)
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()) as printed:
        read(content, Path(scratch))  # what isn't mutated is read
        limit = _memory("VmData") + MOST
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        for number in range(first, first + count):
            print(number, file=out, flush=True)
            mutant = mutated(content, random.Random(f"{seed}/{kind}/{number}"))
            Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew (proc(5))
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
