"""`--mode=sample`: makes images or texts with the newest checkpoint, or translates images."""

import collections
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from core.data import check_feature, image_folder
from core.disk import write_whole
from core.engine.inspect_use import inspected
from core.errors import ConfigurationError, NotFiniteError
from core.precision import SAMPLE
from models.translation.task import checked_translation
from trainers.errors.tensorflow import explained
from trainers.hooks.samples import encode_grid, encode_png, make_sampler
from trainers.hooks.texts import check_writes, make_writer, readable, writes
from trainers.session import Session
from trainers.trainer import Trainer


def run(session: Session) -> int:
    """Writes files below `samples/` in the workdir: texts that continue or answer each `--prompt`, or images as PNG.

    The images are new ones, or with `--images=DIR`, translations of the images in that folder.
    """
    trainer = session.trainer()
    task = trainer.experiment.task
    if session.flags.prompt:
        check_writes(task)
    elif session.flags.images:
        checked_translation(task)
    elif writes(task):
        raise ConfigurationError(
            f"`--prompt` is missing: `{type(task).__name__}` {'continues' if hasattr(task, 'write') else 'answers'} a "
            "given text, as in `--prompt='The value of'`."
        )
    trainer.state.restore(session.required_checkpoint())
    trainer.averaged.update()
    folder = session.workdir.path / "samples"
    if session.flags.prompt:
        each = session.flags.samples if session.flags["samples"].present else 1
        return _write(trainer, [prompt for prompt in session.flags.prompt for _ in range(each)], folder)
    if session.flags.images:
        return _translate(trainer, Path(session.flags.images), folder / "translated")
    count, narrowing = session.flags.samples, trainer.experiment.narrowing(SAMPLE)
    task = trainer.averaged.task
    image = make_sampler(task, trainer.experiment.seed, count, narrowing=narrowing)()["image"]
    bad = int(tf.reduce_sum(tf.cast(tf.reduce_any(~tf.math.is_finite(image), axis=[1, 2, 3]), tf.int32)))
    if bad:
        raise NotFiniteError(
            f"`{type(task).__name__}.sample` made {bad} of {count} images with pixels that aren't finite, from the "
            f"weights of step {trainer.step}, which are finite; look for a division, logarithm or root of zero there. "
            "Nothing was written."
        )
    folder.mkdir(exist_ok=True)
    width = len(str(count - 1))
    for i in range(count):
        write_whole({folder / f"sample-{i:0{width}d}.png": encode_png(image[i])})
    write_whole({folder / "samples.png": encode_grid(image)})
    print(f"{count} samples of step {trainer.step}, in `{folder}`", flush=True)
    return 0


def _write(trainer: Trainer, prompts: Sequence[str], folder: Path) -> int:
    experiment = trainer.experiment
    write = make_writer(
        trainer.averaged.task, experiment.train_source, prompts, experiment.seed, narrowing=experiment.narrowing(SAMPLE)
    )
    texts = write()
    folder.mkdir(exist_ok=True)
    width = len(str(len(texts) - 1))
    for i, text in enumerate(texts):
        write_whole({folder / f"sample-{i:0{width}d}.txt": text})
        print(f"--- {i + 1} of {len(texts)}\n{readable(text)}", flush=True)
    print(f"{len(texts)} texts of step {trainer.step}, in `{folder}`", flush=True)
    return 0


def _translate(trainer: Trainer, images: Path, folder: Path) -> int:
    task = checked_translation(trainer.averaged.task)
    # Held-out images have the size of the networks' inputs; training images may be larger, for cropping.
    known = trainer.experiment.shown_source
    check_feature(known, "a")
    narrowing = trainer.experiment.narrowing(SAMPLE, known.spec)
    source = image_folder(str(images), size=known.spec["a"].shape[0])

    @tf.function(autograph=False)
    def translate(image: tf.Tensor) -> tf.Tensor:
        translated = lambda: narrowing.call(lambda batch: task.translate(batch["a"]), {"a": image})  # noqa: E731
        return inspected(task, "`translate`", translated, say=print)

    folder.mkdir(parents=True, exist_ok=True)
    paths = [Path(path) for path in source.files["image"]]
    stems = collections.Counter(path.stem for path in paths)
    with explained(source):
        for i, path in enumerate(paths):
            image = source.gather(tf.constant([i], tf.int64))["image"]
            # `a.jpg` and `a.png` of one folder must not become one file.
            name = path.stem if stems[path.stem] == 1 else path.name
            write_whole({folder / f"{name}.png": encode_png(translate(2.0 * image - 1.0)[0])})
    print(f"{len(source)} images translated by step {trainer.step}, in `{folder}`", flush=True)
    return 0
