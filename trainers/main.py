"""`python -m trainers.main --gin_file=F [--gin_file=G] [--gin_param='a.b=1'] [--workdir=DIR] [--mode=train]`

Flags, then gin, then a mode. Nothing here imports TensorFlow before it has to: `--help` and a misspelt file answer at
once.
"""

if __name__ == "__main__":
    if not __package__:  # then `trainers/` itself is searched for modules, and hides some of Python's own
        import sys

        sys.stderr.write("error: `trainers/main.py` is run as a file. Run it as `python -m trainers.main`.\n")
        sys.exit(2)
    from trainers.process.bootstrap import begin

    begin()

import contextlib
import functools
import importlib
import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import EXIT_CODES, ConfigurationError, PreemptedError, did_you_mean
from core.signals import held_back
from trainers.errors.exit_report import report
from trainers.errors.packages import CHECKOUT, check_own_packages, import_packages
from trainers.process.application import refuse, run_app, start_logging
from trainers.process.flags import parse_flags
from trainers.process.signals import Preemption, without_wishes
from trainers.process.tensorflow_import import only_what_is_used, without_collector
from trainers.process.tensorflow_log import native_stderr_in

MODES = {
    "train": "trains, with evaluation; goes on by itself where an earlier run of the same configuration stopped",
    "evaluate": "evaluates the newest checkpoint of the workdir, and keeps the figures",
    "evaluate_continuously": "evaluates each new checkpoint of a run that another process trains, until it is over",
    "sample": "images or texts from the newest checkpoint; with `--images=DIR` those, translated",
    "export": "what the task serves, with the newest checkpoint's weights, for use without this project",
    "summary": "prints each variable: its size, the phases that train it, where it lives",
    "dry_run": "prints what a step computes, what each device would hold, and what would cross, from shapes alone",
    "diagnose": "measures where the time of a step goes, says what holds it up, and tries gin lines that could help",
    "tune": "tries settings that change no number on this machine, and prints the gin lines that make it faster",
    "replay": "does the step of a `--capsule` again, and names what isn't finite first: operation, module, row",
    "resume_check": "trains once without and once with a SIGKILL in the middle, and compares every bit",
}
ONLY_IN = {  # the modes in which a flag has an effect
    "allow_config_change": ("train",),
    "restart_optimizer": ("train",),
    "eager": ("train",),
    "step": ("train",),
    "kill_after_step": ("train",),
    "timeout": ("evaluate_continuously",),
    "samples": ("sample",),
    "images": ("sample",),
    "prompt": ("sample",),
    "capsule": ("replay",),
    "format": ("export",),
    "weights": ("export",),
    "export_dir": ("export",),
    "checkpoint": ("evaluate", "sample", "export"),
}
HEARS = ("train", "evaluate_continuously", "tune")  # the modes that signals ask to leave, rather than end
MOST_SAMPLES = 65_536
USAGE = """python -m trainers.main --gin_file=F [--gin_file=G] [--gin_param='a.b=1'] [--workdir=DIR] [--mode=train]

Trains, evaluates and inspects what a gin file describes."""


def main(words: Sequence[str]) -> int:
    """Runs the command with these words behind its name; returns its exit code."""
    try:
        flags = parse(words)
    except ConfigurationError as error:
        return refuse(error)
    return run(flags)


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags; raises a `ConfigurationError` for a wrong one."""
    flags = parse_flags(
        words,
        _define,
        usage=_usage(),
        hint=" A parameter is bound with `--gin_param`, as in `--gin_param='Trainer.steps=9'`.",
    )
    if flags.mode == "replay" and not flags.capsule:
        raise ConfigurationError(
            "`--capsule` is missing: give the folder that the run has left, as "
            "`--capsule=runs/digits_mlp/capsules/step-000000042`."
        )
    if flags.mode == "replay" and flags.workdir:
        raise ConfigurationError("`--workdir` has no effect with `--mode=replay`, which writes nothing: leave it out.")
    if not flags.gin_file and flags.mode != "replay":
        raise ConfigurationError("`--gin_file` is missing: give one, as `--gin_file=configs/digits_mlp.gin`.")
    if flags.mode not in MODES:
        raise ConfigurationError(
            f"`--mode` is {flags.mode!r}; use one of {', '.join(MODES)}.{did_you_mean(flags.mode, MODES)}"
        )
    for name in ("workdir", "export_dir"):
        folder = str(flags[name].value or "")
        if scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", folder):
            raise ConfigurationError(
                f"`--{name}` is {folder!r}: files are kept in a folder of this machine, and nothing is written to "
                f"`{scheme[0]}`. Mount it as a folder, or name another and copy it there afterwards."
            )
    for name, modes in ONLY_IN.items():
        if flags[name].present and flags[name].value is not False and flags.mode not in modes:
            raise ConfigurationError(f"`--{name}` has no effect with `--mode={flags.mode}`: leave it out.")
    if flags.checkpoint not in ("newest", "best") and not flags.checkpoint.isdecimal():
        raise ConfigurationError(
            f"`--checkpoint` is {flags.checkpoint!r}; give `newest`, `best`, or a step, as `--checkpoint=5000`."
        )
    if flags["samples"].present and flags.images:
        raise ConfigurationError("`--samples` has no effect with `--images`, which are all translated: leave it out.")
    if flags.prompt and flags.images:
        raise ConfigurationError("`--prompt` is for texts and `--images` for images: leave one of them out.")
    if flags.mode == "export":
        from trainers.export.asked import asked

        asked(flags.format, flags.weights)
    if flags.restart_optimizer and flags.eager:
        raise ConfigurationError(
            "`--restart_optimizer` has no effect with `--eager`, which saves nothing: leave it out."
        )
    if flags["step"].present and not flags.eager:
        raise ConfigurationError("`--step` says which step `--eager` takes, and has no effect without it: give both.")
    if flags["step"].present and flags.step < 0:
        raise ConfigurationError(f"`--step` is {flags.step}; steps are counted from 0: give that of the step to take.")
    if flags["timeout"].present and flags.timeout < 1:
        raise ConfigurationError(f"`--timeout` is {flags.timeout}; it counts seconds: give 1 or more, or leave it out.")
    if flags.samples < 1:
        raise ConfigurationError(f"`--samples` is {flags.samples}; it counts images or texts: give 1 or more.")
    if flags.samples > MOST_SAMPLES:
        raise ConfigurationError(f"`--samples` is {flags.samples}; give at most {MOST_SAMPLES} at a time.")
    return flags


def _usage() -> str:
    width = max(map(len, MODES)) + 2
    modes = "\n".join(f"  {name:<{width}}{text}" for name, text in MODES.items())
    exit_codes = "\n".join(f"  {code:<4}{text}" for code, text in EXIT_CODES.items())
    return f"{USAGE}\n\nmodes:\n{modes}\n\nexit codes:\n{exit_codes}"


def _define(flag_values: FlagValues) -> None:
    text = functools.partial(absl_flags.DEFINE_string, flag_values=flag_values)
    texts = functools.partial(absl_flags.DEFINE_multi_string, flag_values=flag_values)
    number = functools.partial(absl_flags.DEFINE_integer, flag_values=flag_values)
    switch = functools.partial(absl_flags.DEFINE_boolean, flag_values=flag_values)
    texts("gin_file", [], "a configuration; later ones override earlier ones")
    texts("gin_param", [], "one binding more, as 'a.b=1'; overrides the files")
    text("workdir", None, "where the run is kept; runs/<name of the first gin file> if left out")
    text("mode", "train", "one of the modes above")
    switch("allow_config_change", False, "go on in a workdir whose configuration was another")
    switch("restart_optimizer", False, "go on from the newest checkpoint with fresh optimizers, once in a run")
    switch("eager", False, "one step without tracing: print and breakpoints work in step functions")
    switch("verbose", False, "show tracebacks with errors")
    number("step", None, "with `--eager` that step, from the newest checkpoint at or before it; the first if left out")
    number("kill_after_step", None, "rehearse a crash: SIGKILL the process after this step")
    number("timeout", None, "seconds that `--mode=evaluate_continuously` waits for something new; by default any time")
    number("samples", 64, "how many images `--mode=sample` makes; of texts, how many for each prompt (1 if left out)")
    texts("prompt", [], "the beginning of a text for `--mode=sample` to go on from; may be given several times")
    text("checkpoint", "newest", "which one evaluate, sample and export read: newest, best, or a step")
    text("capsule", None, "the folder that a step which isn't finite has left, for `--mode=replay`")
    text("format", "saved_model", "what `--mode=export` writes: saved_model, tflite, or both with a comma")
    text("weights", "float32", "how an export keeps weights: float32, bfloat16 or int8")
    text("export_dir", None, "where an export is put; `export/<step>` in the workdir if left out")
    text("images", None, "a folder of images for `--mode=sample` to translate")


def run(flags: FlagValues, *, ends_process: bool = False) -> int:
    """Runs the mode that the flags name, or serves the process that does; returns the exit code."""
    try:
        _, workdir = _given(flags)
        if "TF_CONFIG" in os.environ:  # what Slurm says is asked for later: it takes TensorFlow to read it
            from trainers.process.parameter_server import serve, served_place

            if place := served_place():
                start_logging(flags.verbosity)
                serve(place, workdir)
    except ConfigurationError as error:
        return refuse(error)
    preemption = Preemption()
    with preemption.heard() if flags.mode in HEARS else without_wishes():
        return _run(flags, preemption, ends_process=ends_process)


def _run(flags: FlagValues, preemption: Preemption, *, ends_process: bool) -> int:
    start_logging(flags.verbosity)
    try:
        check_own_packages()
        import_packages("gin")
        from trainers.gin_audit import audit

        files, workdir = _given(flags)
        if flags.mode == "replay":  # before its configuration is read
            from trainers.replay.capsule.folder import read_capsule

            read_capsule(workdir)
        configuration = audit.read(files, flags.gin_param, search=[CHECKOUT])
        with native_stderr_in(_log_folder(flags, workdir), ends_process=ends_process):
            with without_collector(), only_what_is_used():
                with held_back(signal.SIGTERM):  # by NumPy's threads for good: what comes is this thread's to hear
                    import_packages("numpy")
                import_packages("rich.progress", "tensorboard.summary.writer.record_writer", "tensorflow")
                from trainers.session import Session

            with saying_goodbye():
                session = Session(flags, configuration, workdir, preemption)
                return int(importlib.import_module(f"trainers.modes.{flags.mode}").run(session))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `sys.exit` in a hook or a loss is no success
        return report(error, verbose=flags.verbose)


def _given(flags: FlagValues) -> tuple[list[str], Path]:
    """Returns the gin files and the workdir; a capsule is one itself, with the run's configuration before others."""
    if flags.mode != "replay":
        return flags.gin_file, Path(flags.workdir or Path("runs") / Path(flags.gin_file[0]).stem)
    capsule = Path(flags.capsule)
    return [str(capsule / "config" / "given.gin"), *flags.gin_file], capsule


def _log_folder(flags: FlagValues, workdir: Path) -> Path | None:
    """Returns where TensorFlow's own messages are kept: training makes the folder; who only looks writes nothing."""
    if flags.eager or flags.mode == "replay":
        return None
    return workdir if flags.mode == "train" or workdir.is_dir() else None


@contextlib.contextmanager
def saying_goodbye() -> Iterator[None]:
    """Tells the other workers, if there are any, how this one ended: they needn't guess, nor wait."""
    from core.cluster import joined, naming_lost_peers

    reason: str | None = "it was stopped by a signal"
    try:
        with naming_lost_peers():
            yield
        reason = None
    except PreemptedError:
        reason = None  # they have agreed on it
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise
    finally:
        membership = joined()
        if membership:
            membership.leave(reason)


if __name__ == "__main__":
    run_app(parse, functools.partial(run, ends_process=True))
