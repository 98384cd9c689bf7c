"""Flags of `--mode=train`."""

from absl.flags import DEFINE_boolean, DEFINE_integer, FlagValues

from core.errors import ConfigurationError

FLAGS = {
    "allow_config_change": (DEFINE_boolean, False, "resume a workdir with a changed configuration"),
    "restart_optimizer": (
        DEFINE_boolean,
        False,
        "resume from the newest checkpoint with new optimizer state, once per run",
    ),
    "eager": (DEFINE_boolean, False, "one step without tracing: print and breakpoints work in step functions"),
    "step": (
        DEFINE_integer,
        None,
        "the step that `--eager` takes, from the newest checkpoint at or before it (default: the first)",
    ),
    "kill_after_step": (DEFINE_integer, None, "rehearse a crash: SIGKILL the process after this step"),
}


def check(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` for flags that have no effect with `--eager`, or without `--eager`."""
    if flags.restart_optimizer and flags.eager:
        raise ConfigurationError("`--restart_optimizer` has no effect with `--eager`, which saves nothing: remove it.")
    if flags["step"].present and not flags.eager:
        raise ConfigurationError(
            "`--step` is the step that `--eager` takes, and has no effect without `--eager`: give both."
        )
    if flags["step"].present and flags.step < 0:
        raise ConfigurationError(f"`--step` is {flags.step}; steps are counted from 0: give 0 or more.")
