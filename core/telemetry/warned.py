"""What a run was warned of, kept beside its figures: one object a line, with `step` and `warning`, each thing once."""

import json
import re

from core.telemetry.jsonl import StepLines

_NUMBER = re.compile(r"(?<![\w/`])\d+|(?<=[/`])\d+(?![\d/`])")  # that is no part of a name, nor all of one in a path


class Warned(StepLines):
    """Appends warnings to `path`, as `StepLines` does; one that an earlier start of the run has kept stays the one."""

    then = "until then warnings are shown, but not kept"

    def rewind(self, step: int) -> None:
        """Removes the warnings of steps after this one, which may be given again."""
        super().rewind(step)
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        self._texts = {str(json.loads(line).get("warning")) for line in lines}

    def warn(self, step: int, text: str, *, each: bool = False) -> None:
        """Keeps a warning of this step, unless it is there already: to the letter, if `each` is to be kept."""
        there = text in self._texts or (not each and gist(text) in map(gist, self._texts))
        if not there:
            self.append({"step": step, "warning": text})
            self._texts.add(text)


def gist(text: str) -> str:
    """Returns what two warnings share that are the same but for their numbers; those of names tell modules apart.

    >>> gist("31 % of the time was spent waiting") == gist("2 % of the time was spent waiting")
    True
    >>> gist("`layers/0` explodes") == gist("`layers/1` explodes") or gist("`conv1`") == gist("`conv2`")
    False
    """
    return _NUMBER.sub("", text)
