"""Pictures of whole trainings, which take longer than the commands of a page: a GAN's samples, and TensorBoard."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tests.commands import CONFIGS, run
from tools.browser import board
from tools.browser.look import browser
from tools.pictures.shots import chromium

WIDTH, HEIGHT = 1000, 640  # pixels of the window
DRAWN = 3_000  # milliseconds for TensorBoard's animations
SETTINGS = """localStorage.setItem("_tb_global_settings", '{"timeSeriesSettingsPaneOpened": false}')"""
TIMEOUT = 900.0  # seconds of a training
ENLARGED = 6  # pixels for each pixel of a sample


class Training(NamedTuple):
    """A configuration, further flags, and a function from the workdir to the picture, or to None without Chromium."""

    configuration: str
    flags: tuple[str, ...]
    picture: Callable[[Path], bytes | None]


def trained(training: Training, folder: Path) -> bytes | None:
    """Trains in a new folder `runs` of `folder`, and returns the picture."""
    workdir = folder / "runs" / training.configuration
    path = CONFIGS / f"{training.configuration}.gin"
    done = run(f"--gin_file={path}", *training.flags, f"--workdir={workdir}", cwd=folder, timeout=TIMEOUT)
    if done.returncode:
        raise RuntimeError(f"{training.configuration} ended with {done.returncode}:\n{done.stderr}")
    return training.picture(workdir)


def samples(workdir: Path) -> bytes:
    """Returns the last grid of samples as PNG, each pixel as a square."""
    grid = tf.io.decode_png(max(workdir.glob("samples/*.png")).read_bytes())
    return bytes(tf.io.encode_png(tf.repeat(tf.repeat(grid, ENLARGED, axis=0), ENLARGED, axis=1)).numpy())


def in_tensorboard(workdir: Path) -> bytes | None:
    """Returns the first screen of TensorBoard's Time Series as PNG; None without Chromium."""
    path = chromium()
    if path is None:
        return None
    with board.serving(workdir.parent) as address, browser(path) as started:
        window = started.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        window.add_init_script(SETTINGS)
        window.goto(board.address_of_cards(address, workdir.name))
        window.locator("scalar-card line-chart").first.wait_for()
        window.wait_for_timeout(DRAWN)
        return window.screenshot()


TRAININGS = {
    "digits_gan.png": Training("digits_gan", (), samples),
    "tensorboard.png": Training(
        "digits_mlp", ("--gin_param=Trainer.log_every = 50", "--gin_param=Trainer.evaluate_every = 50"), in_tensorboard
    ),
}
