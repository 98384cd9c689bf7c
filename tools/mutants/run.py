"""Plants mutants one after the other, and runs the tests that reach each, until one fails."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.mutants.contexts import UNKNOWN, Reach, Test
from tools.mutants.edits import Mutant
from tools.mutants.plant import folder_of
from tools.mutants.trees import Ended, Tree

KILLED, LATE, SURVIVED, UNCOVERED = "killed", "timed out", "survived", "not covered"
CAUGHT = (KILLED, LATE)
FIRST = 15.0  # recorded seconds of a mutant's first tests; each next batch has three times as many
FILES = 8  # test files of a first batch: each has separate imports
WAITS = re.compile(r"time(d )?out|too long", re.IGNORECASE)  # output of a test that a busy machine may have failed
SLACK, FACTOR = 60.0, 10.0  # limits of a batch: seconds, and a multiple of its time without a mutant


class Verdict(NamedTuple):
    """Result of the tests on a mutant."""

    key: str
    path: str
    line: int
    kind: str
    before: str
    after: str
    verdict: str
    by: str  # the failed test, or the running one when time ran out
    long: bool  # no plain test caught it
    reaching: int
    tried: int
    untried: int  # tests beyond the time limit
    seconds: float


class Judge:
    """Runs mutants in a tree. A failure counts if the same test passes without the mutant."""

    def __init__(self, tree: Tree, reach: Reach, sound: dict[str, bool], most: float, long: bool):
        self.tree, self.reach, self.sound, self.most, self.long = tree, reach, sound, most, long

    def verdict(self, mutant: Mutant) -> Verdict:
        """Returns the verdict on one mutant."""
        reaching = self.reach.reaching(mutant)
        files = self.reach.mirrored(mutant)
        plain, long = [[x for x in reaching if x.long is which] for which in (False, True)]
        told: dict[str, Any] = {"by": "", "tried": 0, "seconds": 0.0, "long": False}
        kind, untried = (SURVIVED if reaching or files else UNCOVERED), 0
        text = (self.tree.tree / mutant.path).read_text()
        for tests, late in ((plain, False), *([(long, True)] if self.long else [])):
            batches, left = _batches(_ordered(tests, mutant), self.most)
            untried += left
            if files:
                batches += [(files, None, UNKNOWN * len(files), ["-m", "long" if late else "not long"])]
            for batch in batches:
                kind = self._try(mutant, mutant.planted(text), batch, told) or kind
                if kind in CAUGHT:
                    told["long"] = late
                    return self._say(mutant, kind, told, len(reaching), 0)
        return self._say(mutant, kind, told, len(reaching), untried)

    def _try(self, mutant: Mutant, text: str, batch: Any, told: dict[str, Any]) -> str | None:
        files, names, cost, arguments = batch
        settings, again = {"PYTHONDONTWRITEBYTECODE": "1"}, True
        while True:
            without = sorted(test for test, passes in self.sound.items() if not passes)
            with self.tree.changed(mutant.path, text):
                ended = self.tree.run(files, names, [*arguments, "-x"], SLACK + FACTOR * cost, settings, without)
            told["seconds"] += ended.seconds
            told["tried"] += sum("id" in x for x in ended.notes)
            failure = failed(ended)
            if failure is None or failure in without:
                return None
            if again and any(WAITS.search(x.get("failed") or "") for x in ended.notes):
                again = False
                continue
            file = failure.partition("::")[0]
            if self._passes(failure, file if file in files else files[0]):
                told["by"] = failure
                return LATE if ended.late else KILLED

    def _passes(self, test: str, file: str) -> bool:
        """Tells whether a test passes without a mutant; each is run once."""
        if test not in self.sound:
            ended = self.tree.run([file], [test] if "::" in test else [], limit=900.0)
            self.sound[test] = failed(ended) is None
        return self.sound[test]

    def _say(self, mutant: Mutant, kind: str, told: dict[str, Any], reaching: int, untried: int) -> Verdict:
        told["seconds"] = round(told["seconds"], 1)
        edit = (" ".join(mutant.before.split()), " ".join(mutant.after.split()))
        return Verdict(
            mutant.key, mutant.path, mutant.first, mutant.kind, *edit, verdict=kind, reaching=reaching, untried=untried,
            **told,
        )  # fmt: skip


def failed(ended: Ended) -> str | None:
    """Returns the test or file that failed, or was running when the process ended; None if all passed."""
    for note in ended.notes:
        if note.get("failed"):
            return str(note.get("id") or note["collected"] or "collection")
    if ended.code in (0, 5) and not ended.late:
        return None
    begun = [x["begun"] for x in ended.notes if "begun" in x]
    return begun[-1] if begun else "collection"


def _ordered(tests: Sequence[Test], mutant: Mutant) -> list[Test]:
    """Returns the cheapest tests first; those of the mutant's own folder count a third."""
    own = f"tests/{folder_of(mutant.path) or Path(mutant.path).parent}/"
    return sorted(tests, key=lambda x: ((x.seconds + 0.2) / (3 if x.file.startswith(own) else 1), x.id))


def _batches(tests: Sequence[Test], most: float) -> tuple[list[Any], int]:
    """Splits tests into growing batches, up to `most` seconds in all; returns the number of tests left."""
    left, batches, spent, size, files = list(tests), list[Any](), 0.0, FIRST, FILES
    while left and spent < most:
        batch, cost = list[Test](), 0.0
        for test in left:
            known = {x.file for x in batch}
            if cost + spent < most and cost < size and (test.file in known or len(known) < files):
                batch.append(test)
                cost += test.seconds
        taken = {x.id for x in batch}
        left = [x for x in left if x.id not in taken]
        batches.append((sorted({x.file for x in batch}), [x.id for x in batch], cost, []))
        spent, size, files = spent + cost, 3 * size, 3 * files
    return batches, len(left)


def read(path: Path) -> dict[str, Verdict]:
    """Returns a file's verdicts by mutant key; skips a truncated line."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            verdict = Verdict(**json.loads(line))
        except ValueError:
            continue
        found[verdict.key] = verdict
    return found


def each(trees: Sequence[Tree], work: Sequence[Any], one: Callable[[Tree, Any], Any]) -> Iterator[Any]:
    """Judges mutants in all trees in parallel; yields verdicts as they come."""
    import queue

    todo, done = queue.SimpleQueue[Any](), queue.SimpleQueue[Any]()
    for item in work:
        todo.put(item)

    def loop(tree: Tree) -> None:
        try:
            while True:
                done.put((one(tree, todo.get_nowait()), None))
        except queue.Empty:
            return
        except BaseException as error:
            done.put((None, error))

    threads = [threading.Thread(target=loop, args=(tree,), daemon=True) for tree in trees]
    for thread in threads:
        thread.start()
    for _ in work:
        result, error = done.get()
        if error:
            raise error
        yield result
    for thread in threads:
        thread.join()
