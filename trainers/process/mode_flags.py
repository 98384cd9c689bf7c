"""Flags of single modes, with their checks, which need no TensorFlow. `trainers.main` has the flags of all modes."""

from collections.abc import Callable, Mapping

from absl.flags import DEFINE_boolean, DEFINE_integer, DEFINE_multi_string, DEFINE_string, FlagValues

from core.errors import ConfigurationError
from trainers.process.flags import FlagTable, refuse_address

MOST_SAMPLES = 65_536
_CHECKPOINT: FlagTable = {"checkpoint": (DEFINE_string, "newest", "the checkpoint to read: newest, best, or a step")}
FLAGS: Mapping[str, FlagTable] = {  # by mode
    "train": {
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
    },
    "evaluate": _CHECKPOINT,
    "evaluate_continuously": {
        "timeout": (
            DEFINE_integer,
            None,
            "seconds that `--mode=evaluate_continuously` waits for a new checkpoint (default: no limit)",
        )
    },
    "sample": {
        "samples": (
            DEFINE_integer,
            64,
            "number of images that `--mode=sample` makes, or of texts per prompt (default: 1)",
        ),
        "prompt": (DEFINE_multi_string, [], "the beginning of a text for `--mode=sample` to continue; repeat for more"),
        "images": (DEFINE_string, None, "a folder of images for `--mode=sample` to translate"),
        **_CHECKPOINT,
    },
    "export": {
        "format": (
            DEFINE_string,
            "saved_model",
            "format of `--mode=export`: saved_model, tflite or onnx, or several with commas",
        ),
        "weights": (DEFINE_string, "float32", "type of exported weights: float32, bfloat16 or int8"),
        "export_dir": (DEFINE_string, None, "the folder for an export (default: `export/<step>` in the workdir)"),
        **_CHECKPOINT,
    },
    "replay": {
        "capsule": (DEFINE_string, None, "the folder that a run wrote at a non-finite step, for `--mode=replay`")
    },
}


def _check_train(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` for flags that have no effect with `--eager`, or without `--eager`."""
    if flags.restart_optimizer and flags.eager:
        raise ConfigurationError("`--restart_optimizer` has no effect with `--eager`, which saves nothing: remove it.")
    if flags["step"].present and not flags.eager:
        raise ConfigurationError(
            "`--step` is the step that `--eager` takes, and has no effect without `--eager`: give both."
        )
    if flags["step"].present and flags.step < 0:
        raise ConfigurationError(f"`--step` is {flags.step}; steps are counted from 0: give 0 or more.")


def _check_checkpoint(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` unless `--checkpoint` is `newest`, `best` or a step."""
    if flags.checkpoint not in ("newest", "best") and not flags.checkpoint.isdecimal():
        raise ConfigurationError(
            f"`--checkpoint` is {flags.checkpoint!r}; give `newest`, `best`, or a step, as in `--checkpoint=5000`."
        )


def _check_timeout(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` for a `--timeout` below 1 second."""
    if flags["timeout"].present and flags.timeout < 1:
        raise ConfigurationError(
            f"`--timeout` is {flags.timeout}; give a number of seconds, 1 or more, or remove the flag."
        )


def _check_sample(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` for an invalid value, or for flags that exclude each other."""
    _check_checkpoint(flags)
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


def _check_export(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` for an invalid format, weight type, export folder or checkpoint."""
    from trainers.export.asked import asked

    refuse_address(flags, "export_dir")
    _check_checkpoint(flags)
    asked(flags.format, flags.weights)


def _check_capsule(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` if `--capsule` is missing or `--workdir` is given."""
    if not flags.capsule:
        raise ConfigurationError(
            "`--capsule` is missing: give the folder that the run wrote, as in "
            "`--capsule=runs/digits_mlp/capsules/step-000000042`."
        )
    if flags.workdir:
        raise ConfigurationError("`--workdir` has no effect with `--mode=replay`, which writes nothing: remove it.")


CHECKS: Mapping[str, Callable[[FlagValues], None]] = {  # by mode
    "train": _check_train,
    "evaluate": _check_checkpoint,
    "evaluate_continuously": _check_timeout,
    "sample": _check_sample,
    "export": _check_export,
    "replay": _check_capsule,
}
