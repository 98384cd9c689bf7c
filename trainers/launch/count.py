"""`python -m trainers.launch.count --workers=N -- <flags of trainers.main>`: how many of N workers can share a step.

Prints the number, for scripts that start workers themselves (`deploy/slurm.sh`). The flags are those of
`trainers.launch`. With `--min_workers=K`, fewer than K are an error.
"""

if __name__ == "__main__":
    from trainers.process.bootstrap import begin

    begin()

from core.errors import ConfigurationError
from trainers.launch.__main__ import Launch, make_roster, parse
from trainers.process.application import refuse, run_app


def run(launch: Launch) -> int:
    try:
        print(make_roster(launch).count)
    except ConfigurationError as error:
        return refuse(error)
    return 0


if __name__ == "__main__":
    run_app(parse, run)
