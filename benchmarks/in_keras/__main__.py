"""Keras in a separate process: `python -m benchmarks.in_keras CASE SETTINGS`

SETTINGS are the arguments of `compile` as JSON. It writes the number of parameters. Then it answers each line of input
with the seconds that one run of `fit` trained.
"""

import argparse
import json
import sys
import time
from typing import Any

import keras  # type: ignore[import-untyped]

from benchmarks.adversarial import CASES, batches_for, size_of


class Clock(keras.callbacks.Callback):
    """Measures the time between the first step and the last.

    `fit` itself returns later: it waits for the tuner of its `tf.data` iterator, whose sleep grows with the iterator's
    age.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_train_end(self, logs: Any = None) -> None:
        self.seconds = time.perf_counter() - self.began


def main() -> None:
    """Answers requests until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("settings", type=json.loads)
    flags = parser.parse_args()
    case = CASES[flags.case]
    model, batches = case.in_keras(), batches_for(case)
    model.compile(**flags.settings)
    print(size_of(model.trainable_variables), flush=True)
    for _ in sys.stdin:
        clock = Clock()
        model.fit(batches, steps_per_epoch=case.steps, shuffle=False, verbose=0, callbacks=[clock])
        print(clock.seconds, flush=True)


if __name__ == "__main__":
    main()
