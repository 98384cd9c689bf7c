"""Flags of `--mode=train`."""

from absl.flags import DEFINE_boolean, DEFINE_integer, FlagValues

from core.errors import ConfigurationError

FLAGS = {
    "allow_config_change": (DEFINE_boolean, False, "go on in a workdir whose configuration was another"),
    "restart_optimizer": (
        DEFINE_boolean,
        False,
        "go on from the newest checkpoint with fresh optimizers, once in a run",
    ),
    "eager": (DEFINE_boolean, False, "one step without tracing: print and breakpoints work in step functions"),
    "step": (
        DEFINE_integer,
        None,
        "with `--eager` that step, from the newest checkpoint at or before it; the first if left out",
    ),
    "kill_after_step": (DEFINE_integer, None, "rehearse a crash: SIGKILL the process after this step"),
}


def check(flags: FlagValues) -> None:
    """Refuses flags that have no effect with or without `--eager`."""
    if flags.restart_optimizer and flags.eager:
        raise ConfigurationError(
            "`--restart_optimizer` has no effect with `--eager`, which saves nothing: leave it out."
        )
    if flags["step"].present and not flags.eager:
        raise ConfigurationError("`--step` says which step `--eager` takes, and has no effect without it: give both.")
    if flags["step"].present and flags.step < 0:
        raise ConfigurationError(f"`--step` is {flags.step}; steps are counted from 0: give that of the step to take.")
