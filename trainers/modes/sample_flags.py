"""Flags of `--mode=sample`."""

from absl.flags import DEFINE_integer, DEFINE_multi_string, DEFINE_string, FlagValues

from core.errors import ConfigurationError
from trainers.modes import evaluate_flags

MOST_SAMPLES = 65_536
FLAGS = {
    "samples": (DEFINE_integer, 64, "number of images that `--mode=sample` makes, or of texts per prompt (default: 1)"),
    "prompt": (DEFINE_multi_string, [], "the beginning of a text for `--mode=sample` to continue; repeat for more"),
    "images": (DEFINE_string, None, "a folder of images for `--mode=sample` to translate"),
    **evaluate_flags.FLAGS,
}


def check(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` for an invalid value, or for flags that exclude each other."""
    evaluate_flags.check(flags)
    if flags["samples"].present and flags.images:
        raise ConfigurationError(
            "`--samples` has no effect with `--images`, because all images are translated: remove it."
        )
    if flags.prompt and flags.images:
        raise ConfigurationError("`--prompt` is for texts and `--images` for images: remove one of them.")
    if flags.samples < 1:
        raise ConfigurationError(f"`--samples` is {flags.samples}; give a number of images or texts, 1 or more.")
    if flags.samples > MOST_SAMPLES:
        raise ConfigurationError(f"`--samples` is {flags.samples}; give at most {MOST_SAMPLES} at a time.")
