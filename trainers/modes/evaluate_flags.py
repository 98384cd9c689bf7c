"""Flags of `--mode=evaluate`, which `sample` and `export` have, too."""

from absl.flags import DEFINE_string, FlagValues

from core.errors import ConfigurationError

FLAGS = {"checkpoint": (DEFINE_string, "newest", "the checkpoint to read: newest, best, or a step")}


def check(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` unless `--checkpoint` is `newest`, `best` or a step."""
    if flags.checkpoint not in ("newest", "best") and not flags.checkpoint.isdecimal():
        raise ConfigurationError(
            f"`--checkpoint` is {flags.checkpoint!r}; give `newest`, `best`, or a step, as in `--checkpoint=5000`."
        )
