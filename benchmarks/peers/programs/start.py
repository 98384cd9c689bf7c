"""From a command to its first finished step, as `benchmarks.start` times it: the second time, with modules compiled."""

import json
import os
import sys
from pathlib import Path

from benchmarks.environments import FOLDER
from benchmarks.start import ours, theirs


def main() -> None:
    """Starts a script of Keras by this Python, or Tapeloop with a way to compile; prints how often a second that is."""
    variant, environment = sys.argv[2], {**os.environ, "PYTHONPYCACHEPREFIX": str(FOLDER / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [] if variant == "default" else [f"--gin_param=Trainer.compile = {variant!r}"]
    for _ in range(2):
        if variant in ("fit", "train_on_batch"):
            seconds = theirs(environment, Path(sys.executable), variant)
        else:
            seconds = ours(environment, *words)
    print(json.dumps({"rates": [1.0 / seconds]}))


if __name__ == "__main__":
    main()
