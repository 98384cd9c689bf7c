"""`python -m trainers.track --to=TRACKER [--url=URL] [--project=NAME] [--run=]FOLDER ...`

Sends to a tracker what it lacks of runs that have ended. It doesn't import TensorFlow.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin("gin")

from collections.abc import Sequence

from absl import flags as absl_flags
from absl.flags import FlagValues

from core.errors import ConfigurationError, without_password
from trainers.process.application import command_of, refuse, run_app
from trainers.process.flags import parse_flags
from trainers.runs.find import find_runs
from trainers.runs.read import RUNNING, read_run
from trainers.track.mirror import PROJECT, TRACKERS, Mirror, told

USAGE = """python -m trainers.track --to=TRACKER [--url=URL] [--project=NAME] [FOLDER ...]

Sends to an experiment tracker what it lacks of the runs in and below folders (default: `runs`): metrics, configuration,
samples, result and the path of the newest checkpoint. Each step is sent once, however often the command runs."""


def parse(words: Sequence[str]) -> FlagValues:
    """Returns the flags. Raises a `ConfigurationError` for a wrong flag."""
    return parse_flags(words, _define, usage=USAGE, bare="run")


def _define(flag_values: FlagValues) -> None:
    texts, text = absl_flags.DEFINE_multi_string, absl_flags.DEFINE_string
    texts("run", [], "the folder of a run, or one with runs below it; `--run=` is optional", flag_values=flag_values)
    text("to", None, f"the tracker: {', '.join(TRACKERS)}", flag_values=flag_values)
    text(
        "url", None, "the tracker's address; default: the run's last one, or the tracker's own", flag_values=flag_values
    )
    text("project", None, f"groups runs; default: the run's last one, or {PROJECT}", flag_values=flag_values)


def run(flags: FlagValues) -> int:
    """Sends what the tracker lacks of each run. Returns the exit code."""
    try:
        for path in find_runs(flags.run):
            if read_run(path).state == RUNNING:
                raise ConfigurationError(
                    f"the run in `{path}` isn't over: repeat the command after its end. Its hook `Track` sends "
                    "metrics while it lasts."
                )
            mirror = Mirror(path, flags.to, flags.url, flags.project)
            try:
                sent = mirror.sync()
                mirror.close()
            except Exception as error:  # whatever the tracker's package raises
                where = f" at `{without_password(mirror.url)}`" if mirror.url else ""
                text = f"{flags.to}{where} doesn't take the run in `{path}`: {told(error)}. Nothing is lost: repeat "
                raise ConfigurationError(f"{text}the command once it does.") from error
            print(f"{path}: {sent} values sent to {flags.to}, as run {mirror.run_id}", flush=True)
    except ConfigurationError as error:
        return refuse(error)
    return 0


main = command_of(parse, run)

if __name__ == "__main__":
    run_app(parse, run)
