"""A hook that records times, and ends a run after enough seconds."""

import json
import time

import gin

from trainers.hooks import Hook, Run


@gin.configurable
class Clock(Hook):
    """Writes (step, seconds) to `clock.json` of the workdir; ends the run `seconds` after step `check`."""

    def __init__(self, every: int, check: int, seconds: float):
        super().__init__(every)
        self.check_step, self.seconds = check, seconds
        self.seen: list[tuple[int, float]] = []
        self._until = float("inf")
        self._told = False

    def __call__(self, run: Run) -> None:
        if self._told:  # called once more, for the end of the run
            return
        now = time.perf_counter()
        self.seen.append((run.step, now))
        if run.step == self.check_step:
            self._until = now + self.seconds
        if now >= self._until and run.step > self.check_step:
            (run.workdir.path / "clock.json").write_text(json.dumps(self.seen))
            self._told = True
            run.stop("it has trained for long enough")
