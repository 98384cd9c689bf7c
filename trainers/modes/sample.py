"""`--mode=sample`: images from the newest checkpoint."""

from core.errors import CheckpointError
from trainers.generation import encode_grid, encode_png, make_sampler, write_file
from trainers.session import Session


def run(session: Session) -> int:
    """Writes PNG files below `samples/` in the workdir."""
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
    count = session.flags.samples
    image = make_sampler(trainer.averaged.task, trainer.experiment.seed, count)()["image"]
    width = len(str(count - 1))
    for i in range(count):
        write_file(folder / f"sample-{i:0{width}d}.png", encode_png(image[i]))
    write_file(folder / "samples.png", encode_grid(image))
    print(f"{count} samples of step {trainer.step}, in `{folder}`", flush=True)
    return 0
