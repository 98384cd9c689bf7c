"""Samples of a generator during training: image grids, and quality metrics.

In a gin file:

    Trainer.hooks = [@SampleGrid(), @Quality()]
    SampleGrid.every = 500
    Quality.every = 500
    Quality.judge = @digit_quality()
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gin
import tensorflow as tf

from core.arguments import is_size
from core.cluster import is_chief
from core.engine.inspect_use import inspected
from core.errors import ConfigurationError, shown
from core.precision import AS_GIVEN, SAMPLE, Narrowing
from core.random import Rng
from core.task import Task
from trainers.hooks import Hook, Run, keep_sample

Sampler = Any  # a traced function without arguments; its type isn't public

_IMAGES = (
    'it returns `{"image": [n, height, width, channels]}`, floats in [-1, 1], with 1 to 4 channels. Without images, '
    "use neither `SampleGrid` nor `Quality` nor `--mode=sample`."
)


class Judge(Protocol):
    """Measures the quality of samples."""

    samples: int  # the number of samples to pass

    def __call__(self, image: tf.Tensor, label: tf.Tensor | None = None) -> dict[str, float]:
        """Returns metrics of images [n, height, width, channels] in [-1, 1]."""


@gin.configurable
class SampleGrid(Hook):
    """Writes `count` samples as one PNG to `samples/` and TensorBoard, always with the same random numbers."""

    def __init__(self, every: int | None = None, *, count: int = 64):
        super().__init__(every)
        if not is_size(count):
            raise ConfigurationError(f"`SampleGrid.count` is {shown(count)}; it is a number of images: give 1 or more.")
        self.count = count
        self._sampler: Sampler | None = None

    def check(self, run: Run) -> None:
        self._sampler = _sampler_of(run, self.count)

    def __call__(self, run: Run) -> None:
        run.averaged.update()
        if not is_chief():
            return
        self._sampler = self._sampler or _sampler_of(run, self.count)
        png = encode_grid(self._sampler()["image"])
        keep_sample(run, f"step-{run.step:09d}.png", png)
        run.telemetry.image(run.step, "samples", png)


@gin.configurable
class Quality(Hook):
    """Reports the metrics of `judge` for samples, and warns once if the generator collapses."""

    def __init__(self, every: int | None = None, *, judge: Judge = gin.REQUIRED):
        super().__init__(every)
        self.judge = judge
        self._collapsed = False
        self._sampler: Sampler | None = None

    def check(self, run: Run) -> None:
        samples: Any = getattr(self.judge, "samples", None)
        if not callable(self.judge) or not is_size(samples):
            raise ConfigurationError(
                f"`Quality.judge` is {shown(self.judge)}, whose `samples` is {shown(samples)}; `samples` is the number "
                "of images to call it with: give 1 or more, as `@digit_quality()` does."
            )
        task, self._sampler = run.averaged.task, _sampler_of(run, samples)
        label = inspect.signature(self.judge).parameters.get("label")
        if label and label.default is inspect.Parameter.empty and "label" not in self._sampler.structured_outputs:
            raise ConfigurationError(
                f"`Quality.judge` is {shown(self.judge)}, which needs the `label` of each sample, but `sample` of "
                f"`{type(task).__name__}` returns only images: give a judge without labels, or train with classes."
            )

    def __call__(self, run: Run) -> None:
        run.averaged.update()
        if not is_chief():
            return
        count = self.judge.samples
        self._sampler = self._sampler or _sampler_of(run, count)
        sample = self._sampler()
        figures = self.judge(sample["image"], sample.get("label"))
        run.report("quality", figures)
        collapsed = figures.get("diversity", 1.0) < 0.3
        if collapsed and self._collapsed:  # twice in a row: untrained networks also lack diversity
            run.telemetry.warn_once(
                f"samples vary by {figures['diversity']:.2f} of what real examples do: the generator has collapsed. A "
                "gradient penalty (R1), a lower generator learning rate or averaged generator weights usually help."
            )
        self._collapsed = collapsed

    def state(self) -> dict[str, Any]:
        return {"collapsed": self._collapsed}

    def load(self, state: Mapping[str, Any]) -> None:
        self._collapsed = state["collapsed"]


def _sampler_of(run: Run, count: int) -> Sampler:
    return make_sampler(
        run.averaged.task,
        run.experiment.seed,
        count,
        narrowing=run.experiment.narrowing(SAMPLE),
        say=run.telemetry.note,
    )


def make_sampler(
    task: Task,
    seed: int,
    count: int,
    *,
    in_parts: bool = False,
    narrowing: Narrowing = AS_GIVEN,
    say: Callable[[str], object] = print,
) -> Sampler:
    """Returns a function that draws `count` samples, with the same random numbers each time.

    With `in_parts`, the function takes the number of a part (int64), and draws the `count` samples of this part.

    Traces `task.sample` without running it. Raises an error if it returns no images or has side effects. Suspicious
    code is reported with `say`.
    """
    name = f"`{type(task).__name__}.sample`"

    @tf.function(autograph=False)
    def sample(*part: tf.Tensor) -> Mapping[str, tf.Tensor]:
        rng = Rng.from_seed(seed).fold("samples")._replace(num_rows=count, dtype=narrowing.dtype)
        for number in part:  # draws that rows share differ between parts, too
            rng = rng.fold(number)._replace(first_row=number * count)
        sampled = lambda: narrowing.call(lambda _: task.sample(rng, count), {})  # noqa: E731
        made: Any = inspected(task, "`sample`", sampled, say=say, rng=rng)
        if not isinstance(made, Mapping) or "image" not in made:
            found = f"{shown(sorted(made))}, without `image`" if isinstance(made, Mapping) else shown(made)
            raise ConfigurationError(f"{name} returned {found}; {_IMAGES}")
        return dict(made)

    traced = sample.get_concrete_function(*([tf.TensorSpec([], tf.int64)] if in_parts else []))
    image = traced.structured_outputs["image"]
    shape = image.shape
    fits = shape.rank == 4 and shape[0] in (None, count) and shape[3] in (None, 1, 2, 3, 4)
    if not fits or not image.dtype.is_floating:
        raise ConfigurationError(
            f"{name} returned an `image` of {image.dtype.name} and shape {shape} when asked for {count}; {_IMAGES}"
        )
    return traced


def encode_grid(image: Any) -> bytes:
    """Returns the bytes of a PNG that shows the images [n, height, width, channels] in [-1, 1] as a grid."""
    count, height, width, channels = image.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    image = tf.pad(image, [[0, rows * columns - count], [1, 1], [1, 1], [0, 0]], constant_values=1.0)
    grid = tf.reshape(image, [rows, columns, height + 2, width + 2, channels])
    grid = tf.reshape(tf.transpose(grid, [0, 2, 1, 3, 4]), [rows * (height + 2), columns * (width + 2), channels])
    return encode_png(grid)


def encode_png(image: Any) -> bytes:
    """Returns the bytes of a PNG of one image [height, width, channels] in [-1, 1]."""
    return bytes(tf.io.encode_png(levels(image)).numpy())


def levels(image: Any) -> tf.Tensor:
    """Returns the levels from 0 to 255, uint8, of an image in [-1, 1]."""
    return tf.cast(tf.clip_by_value((image + 1.0) * 127.5, 0.0, 255.0) + 0.5, tf.uint8)
