"""Runs a command with `absl.app.run`, with this project's messages, exit codes and logging."""

import atexit
import functools
import logging as standard_logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from absl import app, flags, logging

from core.errors import ConfigurationError, PeerLostError, TapeloopError, as_said
from trainers.errors.exit_report import report
from trainers.process.signals import STOPPING
from trainers.process.standard_streams import keep_streams

TENSORFLOW = os.path.join("", "tensorflow", "python", "")  # part of the path of each of its files
COORDINATOR = os.path.join("coordinator", "cluster_coordinator.py")
SAVER = "MultiDeviceSaver.save"
Parsed = TypeVar("Parsed")


def run_app(parse: Callable[[Sequence[str]], Parsed], run: Callable[[Parsed], int]) -> NoReturn:
    """Parses the process's command line, runs the command, and exits with its exit code."""
    keep_streams()
    ending = list[int]()
    atexit.register(_leave, ending)  # registered first, so that it runs last
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on it is caught

    def flags_parser(arguments: Sequence[str]) -> Parsed:
        flags.FLAGS.mark_as_parsed()  # required by absl; its flags keep their defaults
        try:
            return parse(arguments[1:])
        except ConfigurationError as error:
            sys.exit(refuse(error))

    app.run(functools.partial(_run, run, ending), flags_parser=flags_parser)


def _run(run: Callable[[Parsed], int], ending: list[int], parsed: Parsed) -> int:
    """Runs the command; exits at once if TensorFlow's threads might wait for lost workers."""
    try:
        code = run(parsed)
    except Exception:  # an error in user code: shown with its traceback
        traceback.print_exc()
        code = TapeloopError.exit_code
    except KeyboardInterrupt as interruption:
        code = report(interruption, verbose=False)
    sys.stdout.flush()
    sys.stderr.flush()
    if code == PeerLostError.exit_code or _is_worker():
        os._exit(code)
    for number in STOPPING:  # all is written: a signal only hastens the exit
        signal.signal(number, lambda *_: os._exit(code))
    ending.append(code)
    return code


def _leave(ending: list[int]) -> None:
    """Ends the process with the exit code in `ending`, if there is one, after all other exit handlers.

    Python's own shutdown can block for ever: it stops Python's threads, and then waits for a prefetch thread that needs
    Python.
    """
    if ending:
        standard_logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ending[0])


def _is_worker() -> bool:
    """Returns whether this process has joined other workers, without importing TensorFlow."""
    workers = sys.modules.get("core.cluster")
    return workers is not None and workers.joined() is not None


def start_logging(verbosity: int) -> None:
    """Sends log lines to the current `sys.stderr`, up to `verbosity`."""
    flags.FLAGS.mark_as_parsed()  # avoids a warning of absl at the first line
    flags.FLAGS["logtostderr"].value = True  # otherwise absl's handler keeps the `sys.stderr` of its import
    logging.use_absl_handler()
    logging.set_verbosity(verbosity)
    logging.get_absl_handler().addFilter(_is_wanted)
    standard_logging.getLogger("tensorflow").handlers.clear()  # avoids duplicate lines


def _is_wanted(record: standard_logging.LogRecord) -> bool:
    """Returns False for TensorFlow's routine messages, and for warnings without a remedy.

    Routine messages report each reduction and checkpoint. Warnings without a remedy are about retracing of saves from
    several servers. The coordinator's long messages on a lost worker are dropped too: the chief reports the loss in one
    line.
    """
    if TENSORFLOW not in record.pathname or logging.level_debug():
        return True
    known = record.pathname.endswith(COORDINATOR) or SAVER in record.getMessage()
    return record.levelno != standard_logging.INFO and not known


def command_of(
    parse: Callable[[Sequence[str]], Parsed], run: Callable[[Parsed], int]
) -> Callable[[Sequence[str]], int]:
    """Returns a function that runs the command with given command-line words, and returns the exit code."""

    def main(words: Sequence[str]) -> int:
        try:
            parsed = parse(words)
        except ConfigurationError as error:
            return refuse(error)
        return run(parsed)

    return main


def refuse(error: ConfigurationError) -> int:
    """Prints the mistake in the flags. Returns the exit code."""
    print(f"error: {as_said(str(error))}", file=sys.stderr)
    return error.exit_code
