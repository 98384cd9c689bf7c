"""`python -m tools.manifests [FILE ...]`: checks the manifests of `deploy/`, or these, against the clients' schemas.

The classes of the Kubernetes and Kubeflow clients know each field's name and type, and which fields are required. They
are installed in an environment of their own, which later calls use again. Exits with 1 if a manifest is wrong.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.environments import prepare

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each document, and one for each mistake."""
    parser = argparse.ArgumentParser(prog="python -m tools.manifests", description=__doc__.partition("\n\n")[2])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="manifests in place of those of `deploy/`")
    files = parser.parse_args(arguments).files or sorted(DEPLOY.glob("*.yaml"))
    program = Path(__file__).with_name("schemas.py")
    return subprocess.run([prepare("kubernetes"), program, *files], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
