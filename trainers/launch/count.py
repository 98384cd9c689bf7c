"""`python -m trainers.launch.count --workers=N -- <flags of trainers.main>`: how many of N workers can share a step.

It prints the number, for scripts that start the workers themselves (`deploy/slurm.sh`); the flags are those of
`trainers.launch`, and with `--min_workers=K` fewer than K are an error.
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
