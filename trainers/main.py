"""`python -m trainers.main --gin_file=F [--gin_file=G] [--gin_param='a.b=1'] [--workdir=DIR] [--mode=train]`

Flags, then gin, then a mode. Nothing here imports TensorFlow before it has to: `--help` and a misspelt file answer at
once.
"""

import argparse
import contextlib
import faulthandler
import importlib
import importlib.util
import json
import os
import signal
import site
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from core.errors import ConfigurationError, PeerLostError, PreemptedError, TapeloopError, did_you_mean

MODES = {
    "train": "trains, with evaluation; goes on by itself where an earlier run of the same configuration stopped",
    "evaluate": "evaluates the newest checkpoint of the workdir",
    "sample": "images from the newest checkpoint, as PNG; with `--images=DIR` those, translated",
    "summary": "prints the parameter table",
    "resume_check": "trains once without and once with a SIGKILL in the middle, and compares every bit",
}
CHECKOUT = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    flags = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_packages()
        from trainers.gin_audit import audit

        configuration = audit.read(flags.gin_file, flags.gin_param, search=[CHECKOUT])
        workdir = Path(flags.workdir or Path("runs") / Path(flags.gin_file[0]).stem)
        with native_stderr_in(workdir if flags.mode == "train" or workdir.is_dir() else None):
            from trainers.session import Session

            with saying_goodbye():
                session = Session(flags, configuration, workdir)
                return int(importlib.import_module(f"trainers.modes.{flags.mode}").run(session))
    except TapeloopError as error:
        return _fail(error, error.exit_code, flags.verbose)
    except (ValueError, TypeError, OSError) as error:
        return _fail(error, ConfigurationError.exit_code, flags.verbose)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m trainers.main",
        description="Trains, evaluates and inspects what a gin file describes.",
        epilog="modes:\n"
        + "\n".join(f"  {name:<14}{text}" for name, text in MODES.items())
        + "\n\nexit codes: 0 finished, "
        "1 an error in your own code, 2 configuration, 3 not finite, 4 data, 5 checkpoint, 6 a peer was lost, "
        "7 replicas drifted apart, 75 stopped and saved: run it again",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--gin_file",
        action="append",
        required=True,
        metavar="F",
        help="a configuration; later ones override earlier ones",
    )
    add("--gin_param", action="append", default=[], metavar="'a.b=1'", help="one binding more; overrides the files")
    add("--workdir", metavar="DIR", help="where the run is kept (default: runs/<name of the first gin file>)")
    add("--mode", default="train", metavar="MODE", help="one of the modes below (default: train)")
    add("--allow_config_change", action="store_true", help="go on in a workdir whose configuration was another")
    add("--eager", action="store_true", help="one step without tracing: print and breakpoints work in step functions")
    add("--verbose", action="store_true", help="show tracebacks with errors")
    add("--kill_after_step", type=int, metavar="N", help="rehearse a crash: SIGKILL the process after this step")
    add("--samples", type=int, default=64, metavar="N", help="how many images `--mode=sample` makes (default: 64)")
    add("--images", metavar="DIR", help="a folder of images for `--mode=sample` to translate")
    flags = parser.parse_args(arguments)
    if flags.mode not in MODES:
        parser.error(f"`--mode` is {flags.mode!r}; use one of {', '.join(MODES)}.{did_you_mean(flags.mode, MODES)}")
    for flag in ("eager", "kill_after_step", "allow_config_change"):
        if flags.mode != "train" and getattr(flags, flag):
            parser.error(f"`--{flag}` has no effect with `--mode={flags.mode}`: leave it out.")
    if flags.samples < 1:
        parser.error(f"`--samples` is {flags.samples}; it counts images: give 1 or more.")
    if flags.images and flags.mode != "sample":
        parser.error(f"`--images` has no effect with `--mode={flags.mode}`: leave it out.")
    return flags


def _check_packages() -> None:
    """A user's own `core/` or `models/` in the working directory would be imported instead of ours."""
    for name in ("core", "models"):
        found = importlib.util.find_spec(name)
        place = Path(found.origin).resolve().parent if found and found.origin else None
        if place != CHECKOUT / name:
            raise ConfigurationError(
                f"`import {name}` finds `{place or name + '/ in the working directory'}` instead of Tapeloop's own "
                f"`{CHECKOUT / name}`: rename the folder, or run from another directory."
            )


@contextlib.contextmanager
def native_stderr_in(workdir: Path | None) -> Iterator[None]:
    """Sends what TensorFlow's C++ writes to stderr to a file; Python's own `sys.stderr` stays where it was.

    No environment variable silences TensorFlow's start-up lines altogether, and level 3 would hide real errors as well.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    path = workdir / _log_name() if workdir else Path(os.devnull)
    if workdir:
        from trainers.workdir import Workdir

        Workdir(workdir).create()
    sys.stderr.flush()
    original = os.dup(2)
    with open(path, "ab") as sink:
        os.dup2(sink.fileno(), 2)
    visible: TextIO = os.fdopen(os.dup(original), "w", buffering=1)
    python_stderr, sys.stderr = sys.stderr, visible
    faulthandler.enable(visible)  # a crash in C++ still says where Python was
    try:
        yield
    except (TapeloopError, ValueError, TypeError, OSError):
        raise
    except BaseException:
        if workdir:
            _show_tail(path, visible)
        raise
    finally:
        faulthandler.disable()
        sys.stderr = python_stderr
        os.dup2(original, 2)
        os.close(original)
        visible.close()


@contextlib.contextmanager
def saying_goodbye() -> Iterator[None]:
    """Tells the other workers, if there are any, how this one ended: they needn't guess, nor wait."""
    from core.workers import joined, naming_lost_peers

    reason: str | None = "it was interrupted"
    try:
        with naming_lost_peers():
            yield
        reason = None
    except PreemptedError:
        reason = None  # they have agreed on it
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise
    finally:
        membership = joined()
        if membership:
            membership.leave(reason)


def _log_name() -> str:
    """Workers share a workdir, but not a log."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG", ""))
        task = config["task"]
        index = str(0 if task["type"] == "chief" else int(task["index"]) + ("chief" in config["cluster"]))
    except (ValueError, TypeError, KeyError):
        rank = os.environ.get("SLURM_PROCID", "0")
        index = "0" if rank == "0" else f"rank_{rank}"  # which place that is among the workers isn't known yet
    return "native_stderr.log" if index == "0" else f"native_stderr_{index}.log"


def _show_tail(path: Path, stream: TextIO, lines: int = 20) -> None:
    tail = path.read_text(errors="replace").splitlines()[-lines:]
    if tail:
        print(f"--- the last of `{path}` (TensorFlow's own messages)", *tail, "---", sep="\n", file=stream)


def _fail(error: Exception, exit_code: int, verbose: bool) -> int:
    from trainers.gin_audit.audit import plain_message

    if verbose:
        traceback.print_exception(error)
    place = "" if isinstance(error, TapeloopError) else _place(error)
    print(f"error: {plain_message(error)}{place}", file=sys.stderr)
    return exit_code


def _place(error: Exception) -> str:
    """Where in the user's own code an error arose: the innermost frame that is neither Tapeloop's nor a package's."""
    libraries = ("<", *(str(CHECKOUT / name) for name in ("core", "models", "trainers")), *site.getsitepackages())
    libraries += (os.path.dirname(os.__file__),)
    own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(libraries)]
    return f" ({own[-1].filename}:{own[-1].lineno}; `--verbose` shows the traceback)" if own else ""


def _is_worker() -> bool:
    """Whether this process has met others; asked without importing TensorFlow for it."""
    workers = sys.modules.get("core.workers")
    return workers is not None and workers.joined() is not None


if __name__ == "__main__":
    try:
        code = main()
    except Exception:  # a user's own mistake: shown whole, and then the way out is the same
        traceback.print_exc()
        code = 1
    except KeyboardInterrupt:
        if not _is_worker():
            raise
        code = 128 + signal.SIGINT
    if code == PeerLostError.exit_code or _is_worker():
        # TensorFlow's threads wait for other workers, who may be gone, and wouldn't let the process go.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
