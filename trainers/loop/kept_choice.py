"""What `Trainer.compile = "auto"` has chosen, in the workdir: a run that goes on takes the same program."""

import json
import os
from collections.abc import Callable, Mapping

import tensorflow as tf

from core.arguments import listed
from core.disk import write_whole
from core.engine import TrainStep
from core.machine import processor, usable_cores
from trainers.loop.run_state import RunState
from trainers.options.compile import AUTO, CHOICE, Compile, compile_words
from trainers.workdir import json_text

_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class KeptChoice:
    """Keeps a choice with the machine and the step that it was measured for, and reads it again."""

    def __init__(self, train_step: TrainStep, state: RunState, *, note: Callable[[str], object]):
        self._train_step, self._note = train_step, note
        self._file, settings = state.workdir.path / CHOICE, state.settings
        self._where = {
            "processor": processor(),
            "cores": usable_cores(),
            "devices": [device.device_type for device in tf.config.list_logical_devices()],
            "tensorflow": tf.__version__,
            "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
            "replicas": train_step.exchange.replicas,
            "global_batch_size": settings.global_batch_size,
            "microbatches": settings.microbatches,
            # A folder that holds no checkpoint may hold the choice of another configuration.
            "configuration": str(state.workdir.config_hash)[:12],
        }

    def anywhere(self) -> Compile | None:
        """Returns the choice, whatever it was measured for; None where there is none that can be read."""
        found = self._read()
        return found[0] if found else None

    def here(self) -> Compile | None:
        """Returns the choice, if it was measured on such a machine and for such a step."""
        if (found := self._read()) is None:
            return None
        words, where = found
        differs = [key for key, value in self._where.items() if where.get(key) != value]
        if differs:
            told = listed(f"{key} was {where.get(key)}, and is {self._where[key]}" for key in differs)
            self._note(f"compile: `{CHOICE}` was measured elsewhere ({told.replace('`', '')}): measured again")
        return None if differs else words

    def write(self, words: Compile, seconds: Mapping[str, float], refused: Mapping[str, str]) -> None:
        """Keeps a choice, with the seconds that a step took by each, and why others were out."""
        kept = {
            "compile": words,
            "seconds_a_step": dict(seconds),
            "refused": dict(refused),
            "measured_on": self._where,
        }
        write_whole({self._file: json_text(kept).encode()})

    def _read(self) -> tuple[Compile, Mapping[str, object]] | None:
        try:
            kept = json.loads(self._file.read_bytes())
            where, words = kept["measured_on"], compile_words(kept["compile"])
            if words == AUTO or not isinstance(where, dict):
                raise ValueError("it holds no choice")
            if isinstance(words, Mapping):
                self._train_step.check_updates(words)
        except FileNotFoundError:
            return None
        except _DAMAGED:  # it is made anew
            self._note(f"compile: `{CHOICE}` can't be read: measured again")
            return None
        return words, where
