"""`python -m trainers.verify_machine [--out=DIR] [--replicas=N] [--only=NAME ...]`

Runs the machine checks on the GPUs, TPUs or CPU present, and writes a report. Takes some minutes.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin()

import functools
from collections.abc import Sequence
from pathlib import Path

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import ConfigurationError, TapeloopError, did_you_mean
from trainers.errors.exit_report import report as blame
from trainers.process.application import command_of, run_app, start_logging
from trainers.process.flags import parse_flags

USAGE = """python -m trainers.verify_machine [--out=DIR] [--replicas=N] [--only=NAME]

Checks on this machine, its GPUs or TPUs, what Tapeloop promises: kernels, trainings, resuming, replicas. Each check
runs in a separate process. Writes report.md and report.json; ends with 1 if a check failed."""


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags. Raises a `ConfigurationError` for a wrong flag."""
    flags = parse_flags(words, _define, usage=USAGE)
    if flags.replicas is not None and flags.replicas < 2:
        raise ConfigurationError(f"`--replicas` is {flags.replicas}; it is a number of devices: give 2 or more.")
    return flags


def _define(flag_values: FlagValues) -> None:
    text = functools.partial(absl_flags.DEFINE_string, flag_values=flag_values)
    text("out", "verify_machine", "the folder for the report and the runs of the checks")
    number = functools.partial(absl_flags.DEFINE_integer, flag_values=flag_values)
    texts = functools.partial(absl_flags.DEFINE_multi_string, flag_values=flag_values)
    switch = functools.partial(absl_flags.DEFINE_boolean, flag_values=flag_values)
    number("replicas", None, "devices to use together (default: all, or two virtual CPUs)")
    texts("only", [], "a check to run; repeat for more")
    switch("verbose", False, "show tracebacks of errors")


def run(flags: FlagValues) -> int:
    """Runs the checks one after the other, and prints a line for each. Returns the exit code."""
    start_logging(flags.verbosity)
    try:
        return _run(flags)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return blame(error, verbose=flags.verbose)


def _run(flags: FlagValues) -> int:
    from trainers.verify_machine.checks import CHECKS, SPEED, TOGETHER
    from trainers.verify_machine.lab import Lab, devices_together, look, made, write_report

    names = [check.name for check in (*CHECKS, *TOGETHER, *SPEED)]
    for name in flags.only:
        if name not in names:
            raise ConfigurationError(f"`--only` is {name!r}; the checks are {names}.{did_you_mean(name, names)}")
    folder = Path(flags.out)
    if (folder / "learns").exists() or (folder / "report.md").exists():
        raise ConfigurationError(f"`--out` is `{folder}`, which holds an earlier report: remove it, or give another.")
    machine = look(folder)
    lab = Lab(folder, machine, devices_together(machine, flags.replicas))
    print(f"{len(machine.devices)} x {machine.kind}; {lab.said}", *machine.advice, sep="\n", flush=True)
    possible = (*CHECKS, *(TOGETHER if lab.replicas > 1 else ()), *SPEED)
    if alone := [name for name in flags.only if name not in [check.name for check in possible]]:
        raise ConfigurationError(
            f"`--only` is {alone[0]!r}, which compares several devices, but this machine has one {machine.kind}: "
            "remove the flag."
        )
    outcomes = []
    for check in possible:
        if flags.only and check.name not in flags.only:
            continue
        outcomes.append(made(check, lab))
        told = outcomes[-1]
        print(f"{'ok    ' if told.passed else 'FAILED'}  {check.name}: {told.seen} ({told.seconds:.0f} s)", flush=True)
    page, _ = write_report(lab, outcomes)
    failed = sum(not told.passed for told in outcomes)
    print(f"{failed or 'none'} of {len(outcomes)} checks failed; the report is `{page}`", flush=True)
    return TapeloopError.exit_code if failed else 0


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
