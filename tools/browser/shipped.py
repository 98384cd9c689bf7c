"""Short runs of every configuration that trains here, with the real command, for the pages to show."""

from collections.abc import Mapping
from pathlib import Path

from tests.commands import CHECKOUT, CONFIGS, run
from tests.test_configs import write_idx
from tools.invariance.stand_ins import write_cifar, write_images
from tools.invariance.subjects import CHANGES, config_names
from trainers.gin_audit.audit import read
from trainers.gin_audit.statements import text

NOT_HERE = {"text_70b"}  # too large for the project's machines
DATA = {
    "cifar10_speed": ("cifar10.directory", write_cifar),
    "cyclegan": ("directory", write_images),
    "mnist_linear": ("mnist.directory", write_idx),
    "mnist_mlp": ("mnist.directory", write_idx),
}
STEPS = 20
HISTOGRAMS = "*[!1-9]/w"  # some of the weights, at least one of each configuration
SMALLER = {  # smaller still than in `CHANGES`
    "digits_ddpm": {"Ddpm.channels": 8, "Ddpm.sample_steps": 2},
    "digits_edm": {"diffusion_mlp.size": 8, "Diffusion.sample_steps": 2},
    "digits_flow": {"diffusion_mlp.size": 8, "Diffusion.sample_steps": 2},
    "digits_guided": {"diffusion_mlp.size": 8, "Diffusion.sample_steps": 2},
    "text_nano": {"context": 32},
    "text_small": {"Trainer.microbatches": 1},
}
SHORT = {
    "Trainer.steps": STEPS,
    "Trainer.chunk_steps": 5,
    "Trainer.log_every": 5,
    "Trainer.evaluate_every": 10,
    "Trainer.checkpoint_every": None,
    "Trainer.global_batch_size": 16,
}


def names() -> list[str]:
    """Returns the configurations that train here."""
    return [name for name in config_names() if name not in NOT_HERE]


def train(name: str, runs: Path) -> None:
    """Trains a configuration into the folder of its name, with histograms in addition to its own hooks."""
    path = CONFIGS / f"{name}.gin"
    bound = {b.name: b.value for b in read([str(path)], [], search=[CHECKOUT]).bindings}
    bindings: dict[str, object] = {key: STEPS // 2 for key in bound if key.endswith(".every")}
    bindings |= {"Quality.every": STEPS} if "Quality.every" in bound else {}  # trains a classifier of many samples
    bindings |= SHORT | SMALLER.get(name, {}) | _data(name, runs.parent / "data")
    hooks = [text(hook) for hook in bound.get("Trainer.hooks", [])]
    bindings |= {"Histograms.every": STEPS, "Histograms.paths": [HISTOGRAMS]}
    params = [f"Trainer.hooks = [{', '.join([*hooks, '@Histograms()'])}]"]
    params += [*CHANGES.get(name, ()), *(f"{key} = {value!r}" for key, value in bindings.items())]
    flags = [f"--gin_param={param}" for param in params]
    done = run(f"--gin_file={path}", *flags, f"--workdir={runs / name}", cwd=runs.parent)
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr}")


def _data(name: str, folder: Path) -> Mapping[str, str]:
    """Writes the data that a user would download, and returns the binding of its folder."""
    if name not in DATA:
        return {}
    place = folder / name
    place.mkdir(parents=True)
    binding, write = DATA[name]
    write(place)
    return {binding: str(place)}
