"""The subjects: every shipped configuration, and two tasks with features that none of them has."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from benchmarks.layouts import shipped
from core.engine import Assembly
from core.task import Batch
from core.testing import assemble
from tests.commands import CHECKOUT, CONFIGS
from tests.test_configs import write_idx
from tools.invariance.stand_ins import write_cifar, write_images
from tools.invariance.toys import Ragged, Synchronised, toy_batch
from trainers import configurables as configurables  # registers them
from trainers import hooks
from trainers.evaluation.evaluator import Evaluator
from trainers.experiment import Experiment
from trainers.gin_audit import registry
from trainers.gin_audit.audit import Configuration, import_module, read
from trainers.gin_audit.statements import Reference, names_in, scoped
from trainers.settings import Settings

ROWS = 16
LAYOUTS = {
    "digits_gan": [("g/hidden/0/?", "...,model"), ("d/hidden/0/?", "...,model")],
    "digits_mlp": [("net/layers/0/?", "...,model"), ("net/layers/1/w", "model,-")],
    "text_tiny": shipped("mesh_transformer"),
}
# Subjects that can't run on a mesh, with the expected error.
REFUSED_ON_MESHES = {
    "cyclegan": "`CycleGan.one_device` names `pool_a`, `pool_b`. On a mesh every",
    "digits_cyclegan": "`CycleGan.one_device` names `pool_a`, `pool_b`. On a mesh every",
    "digits_ddpm": "can't be laid out on the mesh",  # its evaluation: a DTensor error in loops
    "digits_gan_by_batch_size": "`Experiment.placements` places `sample`, `d`, `g`. On a mesh every",
    "digits_gan_generator_on_one_device": "`Experiment.placements` places `sample`. On a mesh every",
    "digits_gan_sampling_on_every_replica": "`Experiment.placements` places `d`, `g`. On a mesh every",
    "digits_resnet": "`tf.math.betainc`, by which `mixup` draws",
    "digits_stylegan2": "`repeated` of `models.gan`: a new axis before another one",
    "digits_vit": "`tf.math.betainc`, by which `mixup` draws",
    "text_lstm": "`unroll` computes `LSTM` in a loop over time",
}
DROPOUT = 0.2
TOYS = {"ragged_dropout": Ragged, "batch_norm_sync": Synchronised}
# Writers of small files in place of a download, by the parameter that names their folder.
STAND_INS: dict[str, Callable[[Path], None]] = {
    "cifar10.directory": write_cifar,
    "mnist.directory": write_idx,
    "unpaired_folders.directory": write_images,
}
NARROW_TEXT = ("LanguageModel.num_layers = 2", "LanguageModel.size = 8", "LanguageModel.num_heads = 2", "context = 8")
# Convolutions on large images and attention over long texts run in nine combinations: narrower networks are the same
# task. The campaign's batch is below the threshold of `digits_gan_by_batch_size`, so that there would be nothing to
# compare.
CHANGES = {
    "digits_gan_by_batch_size": ("when_batch_at_least.rows = 16",),
    "cifar10_speed": ("AirbenchClassifier.width = 4", "offsets/warmup_stable_decay.peak_rate = 20.0"),
    "cyclegan": (
        "unpaired_folders.size = 16",
        "unpaired_folders.load_size = 20",
        "CycleGan.image_shape = [16, 16, 3]",
        "CycleGan.width = 4",
        "CycleGan.blocks = 1",
        "CycleGan.discriminator_channels = [4, 8]",
        "CycleGan.cycle_weight = 1.0",
        "CycleGan.identity_weight = 0.5",
    ),
    "digits_cyclegan": (
        "CycleGan.width = 4",
        "CycleGan.blocks = 1",
        "CycleGan.discriminator_channels = [4, 8]",
        "CycleGan.cycle_weight = 1.0",
        "CycleGan.identity_weight = 0.5",
    ),
    "digits_pix2pix": (
        "Pix2Pix.generator_channels = [4, 8, 8]",
        "Pix2Pix.discriminator_channels = [4, 8]",
        "Pix2Pix.l1_weight = 1.0",
    ),
    "digits_stylegan2": (
        "StyleGan2.channels = [8, 4]",
        "StyleGan2.style_size = 8",
        "StyleGan2.group = 1",  # shares of one row
    ),
    "text_bert": (
        "MaskedLanguageModel.num_layers = 1",
        "MaskedLanguageModel.size = 8",
        "MaskedLanguageModel.num_heads = 2",
        "context = 8",
    ),
    "text_lstm": ("LSTMLanguageModel.size = 8", "context = 8"),
    "text_markov": NARROW_TEXT,
    "text_nano": NARROW_TEXT,
    "text_nano_soap": (*NARROW_TEXT, "chain.transforms = [@adamw()]"),  # signs of SOAP's bases are arbitrary
    "text_70b": (
        *NARROW_TEXT,
        "LanguageModel.vocabulary = 257",
        "LanguageModel.num_kv_heads = 1",
        "LanguageModel.hidden = 32",
    ),
    "text_small": (*NARROW_TEXT, "LanguageModel.vocabulary = 257"),
    "text_t5": ("TextToText.num_layers = 1", "TextToText.size = 8", "TextToText.num_heads = 2"),
    "text_tiny": NARROW_TEXT,
}
# GANs amplify rounding: Adam takes full steps for a gradient that is rounding only, and the other network answers.
# With a larger epsilon, a step is a smooth function of the gradient.
GAMES = ("CycleGan", "Gan", "Pix2Pix", "StyleGan2")
EPSILON = 1e-3


@dataclasses.dataclass(frozen=True)
class Subject:
    """One task: how to build it for a strategy, and the batch that it trains on."""

    name: str
    make: Callable[[tf.distribute.Strategy], Assembly]
    batch: Batch
    changes: Sequence[str] = ()  # bindings on top of the configuration
    layouts: Sequence[tuple[str, str]] = ()  # on meshes; elsewhere only rows are sharded
    experiment: Callable[[tf.distribute.Strategy], Experiment] | None = None  # the configuration's, for the same task


def config_names() -> list[str]:
    """Returns the names of the shipped configurations."""
    return sorted(path.stem for path in CONFIGS.glob("*.gin"))


def subject(name: str, scratch: Path) -> Subject:
    """Returns the toy or configuration of that name; `scratch` is an empty folder, which must outlive the subject."""
    if name in TOYS:
        return Subject(name, lambda strategy: assemble(TOYS[name], strategy), toy_batch(ROWS))
    return configured(CONFIGS / f"{name}.gin", scratch, CHANGES.get(name, ()))


def configured(path: Path, scratch: Path, params: Sequence[str] = ()) -> Subject:
    """Builds a gin file's task, with dropout wherever it allows some; `params` override the file."""
    hooks.register()  # what a hook takes is looked up below
    plain = _read(path, params)
    changes = [*params, *_dropouts(plain), *_epsilons(plain)]
    configuration = _read(path, [*changes, *_stand_ins(plain, scratch)])

    def make(strategy: tf.distribute.Strategy) -> Experiment:
        configuration.bind([Experiment, Settings, Evaluator], required=[Experiment, Settings], register=hooks.register)
        return Experiment(strategy=strategy)

    source = make(tf.distribute.OneDeviceStrategy("CPU:0")).train_source
    batch = source.gather(tf.range(ROWS, dtype=tf.int64))
    layouts = LAYOUTS.get(path.stem, ())
    return Subject(path.stem, lambda strategy: make(strategy).assembly, batch, changes, layouts, make)


def task_name(path: Path) -> str:
    """Returns the configurable that a gin file trains."""
    return _task_of(_read(path, []))


def _task_of(configuration: Configuration) -> str:
    bound = {f"{b.selector}.{b.parameter}": b.value for b in configuration.bindings}
    return str(bound["Experiment.task"].selector)


def _read(path: Path, params: Sequence[str]) -> Configuration:
    configuration = read([str(path)], params, search=[CHECKOUT])
    for item in configuration.imports:
        import_module(item)
    return configuration


def _stand_ins(configuration: Configuration, scratch: Path) -> list[str]:
    params = []
    for binding in configuration.bindings:
        name = f"{binding.selector}.{binding.parameter}"
        if name in STAND_INS:
            folder = scratch / binding.selector
            folder.mkdir()
            STAND_INS[name](folder)
            params.append(f"{binding.name} = {str(folder)!r}")
    return params


def _dropouts(configuration: Configuration) -> list[str]:
    """Turns on the dropout of every configurable that is used and has none."""
    bound = {b.name: b.value for b in configuration.bindings}
    names = {name for _, name in _named(configuration) if not bound.get(f"{name}.dropout", _default(name, "dropout"))}
    return [f"{name}.dropout = {DROPOUT}" for name in sorted(names) if "dropout" in _parameters(name)]


def _epsilons(configuration: Configuration) -> list[str]:
    """Returns a larger epsilon for each Adam-like optimizer, in each scope that it is named in."""
    if _task_of(configuration) not in GAMES:
        return []
    named = sorted(item for item in _named(configuration) if {"epsilon", "beta_2"} <= _parameters(item[1]).keys())
    return [f"{scoped(*item)}.epsilon = {EPSILON}" for item in named]


def _named(configuration: Configuration) -> set[tuple[str, str]]:
    """Returns scope and name of each configurable that is referenced or bound."""
    referred = {x for b in configuration.bindings for x in names_in(b.value) if isinstance(x, Reference)}
    bound = {(b.scope, b.selector) for b in configuration.bindings if not b.is_macro}
    return bound | {(x.scope, x.selector) for x in referred}


def _parameters(name: str) -> dict[str, registry.Parameter]:
    return dict(registry.signature(registry.matches(name)[0]).parameters)


def _default(name: str, parameter: str) -> object:
    return _parameters(name)[parameter].default if parameter in _parameters(name) else None
