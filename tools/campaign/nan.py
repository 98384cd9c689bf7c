"""NaN in a batch, a gradient, a slot and on one of two replicas: the run stops, and its checkpoints stay finite."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from core import checkpoint
from core.errors import DataError, DriftError, NotFiniteError
from tools.campaign.lab import Bench, Case, Lab

MODULE = '''
import gin
import numpy as np
import tensorflow as tf

from core.data import ArraySource
from trainers.hooks import Hook
from watched import Watched


@gin.configurable
def poisoned():
    """One example of what 32 steps read is bad: some step comes to it, in an order that the seed decides."""
    chance = np.random.default_rng(0)
    image = chance.random([2048, 8, 8, 1], np.float32)
    image[chance.integers(2048)] = np.nan
    return ArraySource({"image": image, "label": chance.integers(0, 10, [2048]).astype(np.int32)}, name="poisoned")


@tf.custom_gradient
def bad_gradient(x, bad):
    return tf.identity(x), lambda upstream: (tf.where(bad, np.nan, upstream), None)


@gin.configurable
class BadGradient(Watched):
    def loss(self, batch, rng):
        loss = super().loss(batch, rng)
        if rng is None:  # evaluation
            return loss
        return loss._replace(per_example=bad_gradient(loss.per_example, rng.step >= 12))


@gin.configurable
class Poison(Hook):
    """Writes NaN, or another value, into one variable, of one replica or of all."""

    def __init__(self, every=None, *, name, replica=None, value="nan"):
        super().__init__(every)
        self.name, self.replica, self.value = name, replica, float(value)

    def __call__(self, run):
        if run.step < 12:
            return
        variable = next(v for path, v in run.experiment.variables.items() if self.name in path)
        copies = getattr(variable, "values", [variable])
        for copy in copies if self.replica is None else [copies[self.replica]]:
            copy.assign(tf.fill(copy.shape, self.value))
'''
HOOK = ("Trainer.hooks = [@Told(), @Poison()]", "Poison.every = 5")
TWO = ("Experiment.strategy = @mirrored()", "mirrored.replicas = 2")
SLOT = 'Poison.name = "momentum"'
ONE = (*HOOK, *TWO, "Poison.replica = 1")
WEIGHT = 'Poison.name = "/w"'
GRADIENT = ("Experiment.task = @BadGradient", "BadGradient.optimizer = @sgd()")
KINDS: dict[str, tuple[Sequence[str], int]] = {
    "NaN in a batch": (["Experiment.train_source = @poisoned()"], DataError.exit_code),
    "NaN in a gradient": (GRADIENT, NotFiniteError.exit_code),
    "NaN in a slot": ([*HOOK, SLOT], NotFiniteError.exit_code),
    "NaN in a weight": ([*HOOK, WEIGHT], NotFiniteError.exit_code),
    "NaN in a slot of one of two replicas": ([*ONE, SLOT], NotFiniteError.exit_code),
    "NaN in a weight of one of two replicas": ([*ONE, WEIGHT], NotFiniteError.exit_code),
    "a number in a slot of one of two replicas": ([*ONE, SLOT, 'Poison.value = "7"'], DriftError.exit_code),
}


def cases(lab: Lab) -> Iterator[Case]:
    """Yields a case for each place of a NaN."""
    for name in list(KINDS)[:: 7 if lab.short else 1]:
        yield Case(name, lambda bench, name=name: poison(bench, *KINDS[name]), name)


def poison(bench: Bench, bindings: Sequence[str], code: int) -> None:
    """Trains into the NaN."""
    folder = bench.new()
    (folder / "poison.py").write_text(MODULE)
    replaced = {binding.split(" = ")[0] for binding in bindings}
    lines = (folder / "watched.gin").read_text().splitlines()
    if "Experiment.task" in replaced:
        replaced.add("Watched.optimizer")
    kept = [line for line in lines if line.split(" = ")[0] not in replaced]
    (folder / "watched.gin").write_text("\n".join(["import poison", *kept, *bindings, ""]))
    done = bench.run(folder, codes=[code])
    bench.count(f"said {done.returncode}")
    manifest = checkpoint.newest(folder / "run" / "checkpoints", warn=bench.fail)
    if manifest is None:
        bench.count("nothing was saved before", tried=0)
    elif bad := not_finite(manifest.path):
        bench.fail(f"the newest checkpoint, of step {manifest.step}, isn't finite: {', '.join(bad)}")


def not_finite(path: Path) -> list[str]:
    """Names the saved tensors that hold NaN or infinity."""
    reader = tf.train.load_checkpoint(str(path / "variables"))
    floats = [name for name, dtype in reader.get_variable_to_dtype_map().items() if dtype.is_floating]
    return [name for name in floats if not np.isfinite(reader.get_tensor(name)).all()]
