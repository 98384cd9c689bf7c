"""`python -m trainers.storage [--download] ADDRESS`

Uploads what an address lacks of a run in its local folder, or downloads the run.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin()

from collections.abc import Sequence

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import ConfigurationError
from core.storage import parse_address
from trainers.errors.exit_report import report
from trainers.process.application import command_of, run_app
from trainers.process.flags import parse_flags

USAGE = """python -m trainers.storage [--download] ADDRESS

Uploads a run from its local folder to its address, such as s3://bucket/run: whatever the address lacks. With
--download, copies the run from there to the local folder runs/s3/bucket/run, which all commands can read."""


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags. Raises a `ConfigurationError` for a wrong flag."""
    flags = parse_flags(words, _define, usage=USAGE, bare="address")
    if not flags.address:
        raise ConfigurationError("`--address` is missing: give the `--workdir` of the run, as s3://bucket/run.")
    parse_address(flags.address, "--address")
    return flags


def _define(flag_values: FlagValues) -> None:
    absl_flags.DEFINE_string("address", None, "the address of a run; `--address=` is optional", flag_values=flag_values)
    absl_flags.DEFINE_boolean("download", False, "copy from the address to the folder", flag_values=flag_values)
    absl_flags.DEFINE_boolean("verbose", False, "show tracebacks with errors", flag_values=flag_values)


def run(flags: FlagValues) -> int:
    """Copies the run. Returns the exit code."""
    from trainers.storage.mirror import stored
    from trainers.workdir import Workdir

    address = parse_address(flags.address, "--address")
    try:
        if not flags.download and not address.folder.is_dir():
            raise ConfigurationError(
                f"there is no folder `{address.folder}` to upload: run this where the run was trained, or download "
                "the run with `--download`."
            )
        with stored(address, Workdir(address.folder), writes=not flags.download):
            pass
    except Exception as error:
        return report(error, verbose=flags.verbose)
    what = f"`{address}` is copied to" if flags.download else f"`{address}` has all of"
    print(f"{what} `{address.folder}`", flush=True)
    return 0


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
