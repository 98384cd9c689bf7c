"""Keras in a process of its own: `python -m benchmarks.in_keras CASE SETTINGS [--keep_memory]`

SETTINGS are those of `compile`, as JSON. Writes the number of parameters; then each line read is answered by another
after a run of `fit`. With `--keep_memory` freed memory is kept, as `trainers.main` does it.
"""

import argparse
import json
import sys

from benchmarks.adversarial import CASES, batches_for, size_of
from core.memory import keep_freed_memory


def main() -> None:
    """Serves until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("--keep_memory", action="store_true")
    flags = parser.parse_args()
    if flags.keep_memory:
        keep_freed_memory()
    case = CASES[flags.case]
    model, batches = case.in_keras(), batches_for(case)
    model.compile(**flags.settings)
    print(size_of(model.trainable_variables), flush=True)
    for _ in sys.stdin:
        model.fit(batches, steps_per_epoch=case.steps, shuffle=False, verbose=0)
        print("done", flush=True)


if __name__ == "__main__":
    main()
