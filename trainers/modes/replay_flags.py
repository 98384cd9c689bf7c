"""Flags of `--mode=replay`."""

from absl.flags import DEFINE_string, FlagValues

from core.errors import ConfigurationError

FLAGS = {"capsule": (DEFINE_string, None, "the folder that a run wrote at a non-finite step, for `--mode=replay`")}


def check(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` if `--capsule` is missing or `--workdir` is given."""
    if not flags.capsule:
        raise ConfigurationError(
            "`--capsule` is missing: give the folder that the run wrote, as in "
            "`--capsule=runs/digits_mlp/capsules/step-000000042`."
        )
    if flags.workdir:
        raise ConfigurationError("`--workdir` has no effect with `--mode=replay`, which writes nothing: remove it.")
