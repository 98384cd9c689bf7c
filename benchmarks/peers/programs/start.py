"""Time from a command to its first finished step, as in `benchmarks.start`: the second run, with cached bytecode."""

import json
import os
import sys
from pathlib import Path

from benchmarks.environments import FOLDER
from benchmarks.start import ours, theirs


def main() -> None:
    """Starts a Keras script with this Python, or Tapeloop with a compile setting; prints the inverse of the seconds."""
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
