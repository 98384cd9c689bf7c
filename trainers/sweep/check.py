"""Binds the configuration of each point before the first run, in a separate process that imports TensorFlow.

Reads `{"words": [flags of trainers.main], "points": [[bindings], ...]}` from stdin. Ends with the error and exit code
of the first invalid configuration.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin()

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainers import main as command
from trainers.errors.exit_report import report
from trainers.gin_audit import audit
from trainers.process.application import run_app, start_logging
from trainers.process.bootstrap import CHECKOUT, check_own_packages
from trainers.process.signals import Preemption
from trainers.process.standard_streams import native_stderr_in


def parse(_: Sequence[str]) -> Any:
    return json.load(sys.stdin)


def run(request: Any) -> int:
    """Binds the configurations in order. Returns the exit code."""
    flags = command.parse(request["words"])
    start_logging(flags.verbosity)
    try:
        check_own_packages()
        with native_stderr_in(None), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            from trainers.experiment import Experiment
            from trainers.session import Session
            from trainers.settings import Settings

            for params in request["points"]:
                configuration = audit.read(flags.gin_file, [*flags.gin_param, *params], search=[CHECKOUT])
                Session(flags, configuration, Path(), Preemption()).bind(required=[Experiment, Settings])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a user's module may call `sys.exit`
        return report(error, verbose=flags.verbose)
    return 0


if __name__ == "__main__":
    run_app(parse, run)
