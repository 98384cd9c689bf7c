"""Flags of `--mode=evaluate_continuously`."""

from absl.flags import DEFINE_integer, FlagValues

from core.errors import ConfigurationError

FLAGS = {
    "timeout": (
        DEFINE_integer,
        None,
        "seconds that `--mode=evaluate_continuously` waits for a new checkpoint (default: no limit)",
    )
}


def check(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` for a `--timeout` below 1 second."""
    if flags["timeout"].present and flags.timeout < 1:
        raise ConfigurationError(
            f"`--timeout` is {flags.timeout}; give a number of seconds, 1 or more, or remove the flag."
        )
