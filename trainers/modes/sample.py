"""`--mode=sample`: images from the newest checkpoint, or images translated by it."""

from pathlib import Path

import tensorflow as tf

from core.data import image_folder
from core.errors import CheckpointError
from trainers.explain import explained
from trainers.generation import encode_grid, encode_png, make_sampler, write_file
from trainers.session import Session
from trainers.trainer import Trainer


def run(session: Session) -> int:
    """Writes PNG files below `samples/` in the workdir: new ones, or one for each image of `--images=DIR`."""
    trainer = session.trainer()
    manifest = session.newest_checkpoint()
    if manifest is None:
        raise CheckpointError(
            f"there is no checkpoint in `{session.workdir.checkpoints}`: train first, with the same command and "
            "`--mode=train`, or name the run's folder with `--workdir=DIR`."
        )
    trainer.restore(manifest)
    trainer.averaged.update()
    folder = session.workdir.path / "samples"
    folder.mkdir(exist_ok=True)
    if session.flags.images:
        return _translate(trainer, Path(session.flags.images), folder / "translated")
    count = session.flags.samples
    image = make_sampler(trainer.averaged.task, trainer.experiment.seed, count)()["image"]
    width = len(str(count - 1))
    for i in range(count):
        write_file(folder / f"sample-{i:0{width}d}.png", encode_png(image[i]))
    write_file(folder / "samples.png", encode_grid(image))
    print(f"{count} samples of step {trainer.step}, in `{folder}`", flush=True)
    return 0


def _translate(trainer: Trainer, images: Path, folder: Path) -> int:
    source = image_folder(str(images), size=trainer.experiment.train_source.spec["a"].shape[0])
    translate = tf.function(trainer.averaged.task.translate, autograph=False)
    folder.mkdir(parents=True, exist_ok=True)
    with explained(source):
        for i, path in enumerate(source.files["image"]):
            image = source.gather(tf.constant([i], tf.int64))["image"]
            write_file(folder / f"{Path(path).stem}.png", encode_png(translate(image)[0]))
    print(f"{len(source)} images translated by step {trainer.step}, in `{folder}`", flush=True)
    return 0
