"""A command as a process: `absl.app.run` with our own answers and exit codes, and logging to the visible stderr."""

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

TENSORFLOW = os.path.join("", "tensorflow", "python", "")  # in the path of each of its files
COORDINATOR = os.path.join("coordinator", "cluster_coordinator.py")
SAVER = "MultiDeviceSaver.save"
Parsed = TypeVar("Parsed")


def run_app(parse: Callable[[Sequence[str]], Parsed], run: Callable[[Parsed], int]) -> NoReturn:
    """Parses this process's command line, and ends with the exit code that `run` returns for the flags."""
    keep_streams()
    ending = list[int]()
    atexit.register(_leave, ending)  # before others are, so that it is called after them
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there is somebody to catch it

    def flags_parser(arguments: Sequence[str]) -> Parsed:
        flags.FLAGS.mark_as_parsed()  # absl wants it; its own flags keep their defaults
        try:
            return parse(arguments[1:])
        except ConfigurationError as error:
            sys.exit(refuse(error))

    app.run(functools.partial(_run, run, ending), flags_parser=flags_parser)


def _run(run: Callable[[Parsed], int], ending: list[int], parsed: Parsed) -> int:
    """Runs the command, and leaves at once where TensorFlow's threads would wait for workers who may be gone."""
    try:
        code = run(parsed)
    except Exception:  # a user's own mistake: shown whole, and then the way out is the same
        traceback.print_exc()
        code = TapeloopError.exit_code
    except KeyboardInterrupt as interruption:
        code = report(interruption, verbose=False)
    sys.stdout.flush()
    sys.stderr.flush()
    if code == PeerLostError.exit_code or _is_worker():
        os._exit(code)
    for number in STOPPING:  # all is said and written, and the code stands: a signal can but hasten the end
        signal.signal(number, lambda *_: os._exit(code))
    ending.append(code)
    return code


def _leave(ending: list[int]) -> None:
    """Leaves with the exit code, if there is one, when all that was to be called at the end has been.

    What Python does afterwards can last for ever: it stops its threads, and then waits, as it frees a data set, for one
    that reads ahead by Python's code.
    """
    if ending:
        standard_logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ending[0])


def _is_worker() -> bool:
    """Returns whether this process has met others; asked without importing TensorFlow for it."""
    workers = sys.modules.get("core.cluster")
    return workers is not None and workers.joined() is not None


def start_logging(verbosity: int) -> None:
    """Sends what is logged to whatever `sys.stderr` is at that moment, up to `verbosity`."""
    flags.FLAGS.mark_as_parsed()  # or absl would say with the first line that they aren't
    flags.FLAGS["logtostderr"].value = True  # without it absl's handler keeps the `sys.stderr` of its import
    logging.use_absl_handler()
    logging.set_verbosity(verbosity)
    logging.get_absl_handler().addFilter(_is_wanted)
    standard_logging.getLogger("tensorflow").handlers.clear()  # with one of its own it would say everything twice


def _is_wanted(record: standard_logging.LogRecord) -> bool:
    """Returns false for what TensorFlow tells at absl's default verbosity, and for what nobody can do anything about.

    The former is each reduction, each checkpoint. The latter is that a save of what lies on several servers is traced
    anew each time, and what the coordinator says at length of a lost worker, where the chief says it in a line.
    """
    if TENSORFLOW not in record.pathname or logging.level_debug():
        return True
    known = record.pathname.endswith(COORDINATOR) or SAVER in record.getMessage()
    return record.levelno != standard_logging.INFO and not known


def command_of(
    parse: Callable[[Sequence[str]], Parsed], run: Callable[[Parsed], int]
) -> Callable[[Sequence[str]], int]:
    """Returns the command as a function of the words after its name, which returns the exit code."""

    def main(words: Sequence[str]) -> int:
        try:
            parsed = parse(words)
        except ConfigurationError as error:
            return refuse(error)
        return run(parsed)

    return main


def refuse(error: ConfigurationError) -> int:
    """Prints what is wrong with the flags; returns the exit code."""
    print(f"error: {as_said(str(error))}", file=sys.stderr)
    return error.exit_code
