"""The checks: each runs commands and compares their results."""

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path

from core import checkpoint
from trainers.process.bootstrap import CHECKOUT
from trainers.runs.read import Run
from trainers.verify_machine.lab import Check, FailedError, Lab, command

KERNEL_ERROR = 1e-4  # for float32; TensorFloat-32 is accurate to 2 ** -11
ROUNDED_ERROR = 5e-3
FIGURE_ERROR = 1e-3  # metrics of early steps, summed in another order
SHARE_ERROR = 1e-2  # accuracies: rounding moves some rows across a decision boundary
LEARNT = ("loss", "accuracy", "real_accuracy", "fake_accuracy")  # without speeds, rates and ratios
SHORT = ("Trainer.steps = 60", "Trainer.log_every = 20", "Trainer.evaluate_every = None", "Trainer.hooks = []")


def kernels(lab: Lab) -> str:
    """Compares the device's kernels with the CPU's in float64."""
    found: dict[str, float] = json.loads(command(lab.folder / "kernels.log", "trainers.verify_machine.kernels"))
    rounds = any("TensorFloat-32 is on" in line for line in lab.machine.details)
    most = ROUNDED_ERROR if rounds else KERNEL_ERROR
    worst = max(found, key=lambda name: found[name] if math.isfinite(found[name]) else math.inf)
    if not all(error <= most for error in found.values()):
        raise FailedError(f"{worst} is off by {found[worst]:.1e}, more than {most:.0e}")
    return f"{len(found)} kinds, largest error {found[worst]:.1e} in {worst}"


def learns(lab: Lab) -> str:
    """Trains on one device up to a required accuracy."""
    run = lab.train("learns", "digits_mlp", ["steps = 1000"])
    accuracy = _last(run, "eval/accuracy")
    if not accuracy > 0.94:
        raise FailedError(f"after 1,000 steps {accuracy:.1%} of the held-out digits are right; 94 % are required")
    return f"{accuracy:.1%} of the held-out digits after 1,000 steps"


def repeats(lab: Lab) -> str:
    """Trains twice with deterministic operations, and compares the weights bit for bit."""
    bindings = [*SHORT, "Experiment.deterministic = True"]
    first, second = (lab.train(f"repeats-{i}", "digits_convnet", bindings) for i in (1, 2))
    _same_bits(first.path, second.path)
    return "weights and optimizer state are bit-identical"


def resumes(lab: Lab) -> str:
    """Kills and resumes a run, and compares it bit for bit with an uninterrupted one."""
    return _resumed(lab, "resumes", "digits_convnet", [], [])


def compiles(lab: Lab) -> str:
    """Trains with and without XLA, and compares the metrics."""
    off, on = (lab.train(f"compile-{x}", "digits_mlp", [*SHORT, f"Trainer.compile = {x!r}"]) for x in ("off", "xla"))
    return _same_figures(off, on)


def accumulates(lab: Lab) -> str:
    """Trains with four microbatches and with one, and compares the metrics."""
    one, four = (lab.train(f"microbatches-{k}", "digits_mlp", [*SHORT, f"Trainer.microbatches = {k}"]) for k in (1, 4))
    return _same_figures(one, four)


def replicates(lab: Lab) -> str:
    """Trains on all devices together and on one device, and compares the metrics."""
    return _same_figures(_alone(lab), lab.train("together", "digits_mlp", _large_batch(lab), lab.together))


def places(lab: Lab) -> str:
    """Trains a GAN with its generator on one device and on all devices, and compares the metrics."""
    # Two networks that learn from each other amplify rounding: 20 steps later a difference is 1e-3.
    bindings = [*SHORT, "Trainer.steps = 20", f"Trainer.global_batch_size = {32 * lab.replicas}"]
    everywhere = lab.train("gan-everywhere", "digits_gan", bindings, lab.together)
    apart = lab.train("gan-apart", "digits_gan_generator_on_one_device", bindings, lab.together)
    return _same_figures(everywhere, apart)


def cuts(lab: Lab) -> str:
    """Trains on a mesh of all devices and on one device, and compares the metrics."""
    mesh = [f"--gin_file={CHECKOUT}/configs/runtime/mesh.gin", f"--gin_param=mesh.batch = {lab.replicas}"]
    return _same_figures(_alone(lab), lab.train("mesh", "digits_mlp", _large_batch(lab), mesh))


def resumes_together(lab: Lab) -> str:
    """Kills and resumes a run on all devices, and compares it bit for bit with an uninterrupted run."""
    bindings = [f"Trainer.global_batch_size = {32 * lab.replicas}"]
    return _resumed(lab, "resumes-together", "digits_mlp", bindings, lab.together)


def is_used_well(lab: Lab) -> str:
    """Measures the parts of a step's time, on one device and on all of them."""
    bindings = ["Trainer.hooks = []", f"Trainer.global_batch_size = {128 * lab.replicas}"]
    flags = lab.flags("diagnosis", "digits_convnet", bindings, lab.together)
    command(lab.folder / "diagnosis.log", *flags, "--mode=diagnose")
    found = json.loads((lab.folder / "diagnosis" / "diagnosis.json").read_text())
    return " ".join(found["verdict"]["sentence"].split())


CHECKS = (
    Check("kernels", "operations and their gradients are correct", kernels),
    Check("learns", "training on one device reaches the required accuracy", learns),
    Check("repeats", "deterministic runs are bit-identical", repeats),
    Check("resumes", "a killed and resumed run is bit-identical", resumes),
    Check("compiles", "XLA gives the same metrics", compiles),
    Check("accumulates", "microbatches give the same metrics", accumulates),
)
TOGETHER = (
    Check("replicates", "replicas give the metrics of one device", replicates),
    Check("places", "so does a GAN with its generator on one device", places),
    Check("cuts", "so does a mesh", cuts),
    Check("resumes together", "replicas resume bit for bit", resumes_together),
)
SPEED = (Check("is used well", "the parts of a step's time", is_used_well),)


def _large_batch(lab: Lab) -> list[str]:
    return [*SHORT, f"Trainer.global_batch_size = {32 * lab.replicas}"]


@functools.cache
def _alone(lab: Lab) -> Run:
    """Trains on one device, once for all checks of several devices."""
    return lab.train("one", "digits_mlp", _large_batch(lab))


def _resumed(lab: Lab, name: str, config: str, bindings: Sequence[str], more: Sequence[str]) -> str:
    flags = lab.flags(name, config, ["Experiment.deterministic = True", *bindings], more)
    return command(lab.folder / f"{name}.log", *flags, "--mode=resume_check").strip().splitlines()[-1]


def _last(run: Run, figure: str) -> float:
    if figure not in run.figures:
        raise FailedError(f"the run left no `{figure}`: see `{run.path}`")
    return run.figures[figure].values[-1]


def _same_bits(one: Path, other: Path) -> None:
    first, second = (checkpoint.newest(path / "checkpoints", warn=print) for path in (one, other))
    if first is None or second is None:
        raise FailedError(f"there is no checkpoint in `{one}` or `{other}`")
    differ = [path for path, saved in first.variables.items() if second.variables.get(path) != saved]
    if differ:
        raise FailedError(f"{len(differ)} of {len(first.variables)} variables differ, `{differ[0]}` among them")


def _apart(values: Sequence[float], others: Sequence[float]) -> float:
    """Returns the largest difference, relative to max(1, |value|). It is infinite if one value isn't a number."""
    distances = [abs(a - b) / max(1.0, abs(a)) for a, b in zip(values, others, strict=True)]
    return max(x if math.isfinite(x) else math.inf for x in distances)


def _same_figures(one: Run, other: Run) -> str:
    """Compares all losses and metrics of training. Returns the largest difference as text."""
    names = [name for name in one.figures if name.startswith("train/") and name.rpartition("/")[2] in LEARNT]
    if not names or {*names} - {*other.figures}:
        raise FailedError(f"`{one.path}` and `{other.path}` have no metrics in common")
    apart = {name: _apart(one.figures[name].values, other.figures[name].values) for name in names}
    allowed = {name: SHARE_ERROR if name.endswith("accuracy") else FIGURE_ERROR for name in names}
    worst = max(apart, key=lambda name: apart[name] / allowed[name])
    if not apart[worst] <= allowed[worst]:
        raise FailedError(f"`{worst}` is off by {apart[worst]:.1e}, more than {allowed[worst]:.0e}")
    return f"{len(names)} metrics, at most {max(apart.values()):.1e} apart"
