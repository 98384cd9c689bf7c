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
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl.flags import DEFINE_boolean, DEFINE_multi_string, DEFINE_string, FlagValues

from core.errors import EXIT_CODES, ConfigurationError, PreemptedError, did_you_mean
from core.signals import held_back
from trainers.errors.exit_report import report
from trainers.errors.packages import CHECKOUT, check_own_packages, import_packages
from trainers.process.application import refuse, run_app, start_logging
from trainers.process.flags import FlagTable, define_table, parse_flags, refuse_address
from trainers.process.signals import Preemption, without_wishes
from trainers.process.tensorflow import native_stderr_in, only_what_is_used, without_collector

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
DECLARING = ("train", "evaluate", "evaluate_continuously", "sample", "export", "replay")  # flags of their own
HEARS = ("train", "evaluate_continuously", "tune")  # the modes that signals ask to leave, rather than end
FLAGS: FlagTable = {  # of all modes
    "gin_file": (DEFINE_multi_string, [], "a configuration; later ones override earlier ones"),
    "gin_param": (DEFINE_multi_string, [], "one binding more, as 'a.b=1'; overrides the files"),
    "workdir": (DEFINE_string, None, "where the run is kept; runs/<name of the first gin file> if left out"),
    "mode": (DEFINE_string, "train", "one of the modes above"),
    "verbose": (DEFINE_boolean, False, "show tracebacks with errors"),
}
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
        functools.partial(define_table, table=FLAGS),
        usage=_usage(),
        hint=" A parameter is bound with `--gin_param`, as in `--gin_param='Trainer.steps=9'`.",
        define_more=_define_flags_of_modes,
    )
    if not flags.gin_file and flags.mode != "replay":
        raise ConfigurationError("`--gin_file` is missing: give one, as `--gin_file=configs/digits_mlp.gin`.")
    if flags.mode not in MODES:
        raise ConfigurationError(
            f"`--mode` is {flags.mode!r}; use one of {', '.join(MODES)}.{did_you_mean(flags.mode, MODES)}"
        )
    refuse_address(flags, "workdir")
    own = _flags_of(flags.mode) if flags.mode in DECLARING else None
    known = {*FLAGS, *(own.FLAGS if own else ())}
    for name in [name for name in flags if flags[name].present and flags[name].value is not False]:
        if name not in known and any(name in _flags_of(mode).FLAGS for mode in DECLARING):
            raise ConfigurationError(f"`--{name}` has no effect with `--mode={flags.mode}`: leave it out.")
    if own:
        define_table(flags, own.FLAGS)
        own.check(flags)
    return flags


def _flags_of(mode: str) -> Any:
    return importlib.import_module(f"trainers.modes.{mode}_flags")


def _define_flags_of_modes(flag_values: FlagValues) -> None:
    for mode in DECLARING:
        define_table(flag_values, _flags_of(mode).FLAGS)


def _usage() -> str:
    width = max(map(len, MODES)) + 2
    modes = "\n".join(f"  {name:<{width}}{text}" for name, text in MODES.items())
    exit_codes = "\n".join(f"  {code:<4}{text}" for code, text in EXIT_CODES.items())
    return f"{USAGE}\n\nmodes:\n{modes}\n\nexit codes:\n{exit_codes}"


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
    if flags.mode == "replay" or (flags.mode == "train" and flags.eager):
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
