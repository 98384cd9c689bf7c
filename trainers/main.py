"""`python -m trainers.main --gin_file=F [--gin_file=G] [--gin_param='a.b=1'] [--workdir=DIR] [--mode=train]`

Parses flags, then gin, then runs a mode. TensorFlow is imported late: `--help` and errors in flags or gin files appear
at once.
"""

if __name__ == "__main__":
    if not __package__:  # then Python searches `trainers/` for modules, which hide some of its own
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
from typing import TYPE_CHECKING

from absl.flags import DEFINE_boolean, DEFINE_multi_string, DEFINE_string, FlagValues

from core.errors import EXIT_CODES, ConfigurationError, PreemptedError, did_you_mean
from core.signals import held_back
from core.storage.address import is_address, parse_address
from trainers.errors.exit_report import report
from trainers.process import mode_flags
from trainers.process.application import command_of, refuse, run_app, start_logging
from trainers.process.bootstrap import (
    CHECKOUT,
    check_own_packages,
    import_packages,
    only_what_is_used,
    without_collector,
)
from trainers.process.flags import FlagTable, define_table, parse_flags
from trainers.process.signals import Preemption, without_wishes
from trainers.process.standard_streams import native_stderr_in

if TYPE_CHECKING:
    from trainers.session import Session

MODES = {
    "train": "trains, with evaluation; resumes a stopped run of the same configuration",
    "evaluate": "evaluates the newest checkpoint of the workdir, and records the metrics",
    "evaluate_continuously": "evaluates each new checkpoint of a run that another process trains, until that ends",
    "sample": "makes images or texts from the newest checkpoint; with `--images=DIR`, translates images",
    "export": "exports the task's serving functions from the newest checkpoint, for use without this project",
    "summary": "prints each variable: its size, the phases that train it, its place",
    "dry_run": "prints operations, memory per device and communication of a step, from shapes alone",
    "diagnose": "measures the parts of a step's time, names the bottleneck, and tries gin lines that could help",
    "tune": "tries settings that don't change results, and prints the gin lines that make training faster",
    "find_rate": "trains a copy with a rising learning rate, and suggests one",
    "replay": "repeats the step of a `--capsule`, and names the first non-finite value: operation, module, row",
    "resume_check": "trains once without and once with a SIGKILL in the middle, and compares every bit",
}
STORED = ("train", "evaluate", "sample", "export")  # modes whose workdir may be an address in object storage
HEARS = ("train", "evaluate_continuously", "tune")  # modes that stop at a safe point after a signal
FLAGS: FlagTable = {  # of all modes
    "gin_file": (DEFINE_multi_string, [], "a configuration; later ones override earlier ones"),
    "gin_param": (DEFINE_multi_string, [], "a further binding, as 'a.b=1'; overrides the files"),
    "workdir": (
        DEFINE_string,
        None,
        "the folder of the run, or its address as s3://bucket/run (default: runs/<name of the first gin file>)",
    ),
    "mode": (DEFINE_string, "train", "one of the modes above"),
    "verbose": (DEFINE_boolean, False, "show tracebacks with errors"),
}
USAGE = """python -m trainers.main --gin_file=F [--gin_file=G] [--gin_param='a.b=1'] [--workdir=DIR] [--mode=train]

Trains, evaluates and inspects what a gin file describes."""


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags. Raises a `ConfigurationError` for a wrong flag."""
    of_modes = {name: flag for table in mode_flags.FLAGS.values() for name, flag in table.items()}
    flags = parse_flags(
        words,
        functools.partial(define_table, table=FLAGS),
        usage=_usage(),
        hint=" A parameter is bound with `--gin_param`, as in `--gin_param='Trainer.steps=9'`.",
        define_more=functools.partial(define_table, table=of_modes),
    )
    if not flags.gin_file and flags.mode != "replay":
        raise ConfigurationError("`--gin_file` is missing: give one, as `--gin_file=configs/digits_mlp.gin`.")
    if flags.mode not in MODES:
        raise ConfigurationError(
            f"`--mode` is {flags.mode!r}; use one of {', '.join(MODES)}.{did_you_mean(flags.mode, MODES)}"
        )
    _check_address(flags)
    own = mode_flags.FLAGS.get(flags.mode, {})
    for name in [name for name in flags if flags[name].present and flags[name].value is not False]:
        if name in of_modes and name not in own:
            raise ConfigurationError(f"`--{name}` has no effect with `--mode={flags.mode}`: remove it.")
    define_table(flags, own)
    if check := mode_flags.CHECKS.get(flags.mode):
        check(flags)
    return flags


def _check_address(flags: FlagValues) -> None:
    """Raises a `ConfigurationError` for an invalid address as the workdir, or for a mode that needs a folder."""
    if not is_address(flags.workdir or ""):
        return
    address = parse_address(flags.workdir, "--workdir")
    if flags.mode not in STORED:
        raise ConfigurationError(
            f"`--mode={flags.mode}` works in a local folder, but `--workdir` is {flags.workdir!r}: give `--workdir="
            f"{address.folder}`, which `python -m trainers.storage --download {address}` brings up to date."
        )


def _usage() -> str:
    width = max(map(len, MODES)) + 2
    modes = "\n".join(f"  {name:<{width}}{text}" for name, text in MODES.items())
    exit_codes = "\n".join(f"  {code:<4}{text}" for code, text in EXIT_CODES.items())
    return f"{USAGE}\n\nmodes:\n{modes}\n\nexit codes:\n{exit_codes}"


def run(flags: FlagValues, *, ends_process: bool = False) -> int:
    """Runs the mode that `flags` name, or serves a chief as its worker or parameter server. Returns the exit code."""
    try:
        _, workdir = _given(flags)
        if "TF_CONFIG" in os.environ:  # Slurm's variables are read later, as that takes TensorFlow
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
        if flags.mode == "replay":  # replay also fixes the configuration
            from trainers.replay.capsule.folder import read_capsule

            read_capsule(workdir)
        configuration = audit.read(files, flags.gin_param, search=[CHECKOUT])
        with native_stderr_in(_log_folder(flags, workdir), ends_process=ends_process):
            with without_collector(), only_what_is_used():
                with held_back(signal.SIGTERM):  # permanently in NumPy's threads, so that this thread gets the signals
                    import_packages("numpy")
                import_packages("rich.progress", "tensorboard.summary.writer.record_writer", "tensorflow")
                from trainers.session import Session

            with saying_goodbye():
                session = Session(flags, configuration, workdir, preemption)
                with _stored(session):
                    return int(importlib.import_module(f"trainers.modes.{flags.mode}").run(session))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `sys.exit` in a hook or loss isn't success
        return report(error, verbose=flags.verbose)


def _given(flags: FlagValues) -> tuple[list[str], Path]:
    """Returns the gin files and the workdir. A replay's workdir is its capsule, whose gin file comes first."""
    if flags.mode != "replay":
        if is_address(flags.workdir or ""):
            return flags.gin_file, parse_address(flags.workdir, "--workdir").folder
        return flags.gin_file, Path(flags.workdir or Path("runs") / Path(flags.gin_file[0]).stem)
    capsule = Path(flags.capsule)
    return [str(capsule / "config" / "given.gin"), *flags.gin_file], capsule


@contextlib.contextmanager
def _stored(session: "Session") -> Iterator[None]:
    """Keeps the run at its address in object storage during the block, if `--workdir` is one."""
    flags = session.flags
    if not is_address(flags.workdir or ""):
        yield
        return
    from trainers.storage.mirror import stored

    writes = flags.mode == "train" and not flags.eager
    with stored(parse_address(flags.workdir, "--workdir"), session.workdir, writes=writes) as session.more_hooks:
        yield


def _log_folder(flags: FlagValues, workdir: Path) -> Path | None:
    """Returns the folder for TensorFlow's own messages, or None; only training creates a workdir for such messages."""
    if flags.mode == "replay" or (flags.mode == "train" and flags.eager):
        return None
    return workdir if flags.mode == "train" or workdir.is_dir() else None


@contextlib.contextmanager
def saying_goodbye() -> Iterator[None]:
    """At the end of the block, tells other workers how this worker ended, so that they don't wait for it."""
    from core.cluster import joined, naming_lost_peers

    reason: str | None = "it was stopped by a signal"
    try:
        with naming_lost_peers():
            yield
        reason = None
    except PreemptedError:
        reason = None  # all workers have agreed on it
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


main = command_of(parse, run)


if __name__ == "__main__":
    run_app(parse, functools.partial(run, ends_process=True))
