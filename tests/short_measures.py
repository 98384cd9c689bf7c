"""Makes `--mode=diagnose`, `tune` and `dry_run` measure for a shorter time, in a fork of `tests.fork_server`.

They measure and print the same, with more noise; `tune` tries fewer settings.
"""

from trainers.dry_run import speeds
from trainers.performance.diagnose import bench, diagnosis
from trainers.performance.rehearsal import Rehearsal
from trainers.performance.tune import contest, search, trial


def begin(search_seconds: float = 3.0) -> None:
    """Shortens each measurement of this process."""
    bench.TIMED_SECONDS = 0.01
    bench.ROUNDS = diagnosis.ROUNDS = 2
    bench.STRETCHES = diagnosis.STRETCHES = 1
    Rehearsal.real.__defaults__ = (0.02,)
    contest.PAIRS = 3
    search.SEARCH_SECONDS = search_seconds
    trial.TURN_SECONDS = 0.02
    speeds.MOST_SECONDS = 0.3
    speeds.EACH_SECONDS = 0.003
    speeds.best_seconds.__kwdefaults__["within"] = 0.02
