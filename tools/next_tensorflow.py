"""`python -m tools.next_tensorflow --workdir=W`: tries this checkout with the next TensorFlow, and lists what fails.

Installs `tf-nightly` (or `--tensorflow=REQUIREMENT`) and the other requirements in an environment of its own, `W/env`.
Imports each symbol of `core/tensorflow_private.py` there, then runs the plain tests, or those that are named. A second
call uses the same environment. The exit code is 1 if a symbol is missing or a test fails.
"""

import argparse
import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
PRIVATE = CHECKOUT / "core" / "tensorflow_private.py"
PROBE = """
import importlib, json, sys
for module, name in json.load(sys.stdin):
    try:
        getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        try:
            importlib.import_module(f"{module}.{name}")
        except ImportError as error:
            print(f"{module}.{name}: {error}")
"""


def requirements(lines: Iterable[str], extra: str) -> list[str]:
    """Returns the requirements with and for `extra`, except TensorFlow.

    >>> requirements(["numpy>=1.26", "tensorflow<2.22", 'pytest>=8; extra == "dev"', 'xprof; extra == "x"'], "dev")
    ['numpy>=1.26', 'pytest>=8']
    """
    found = []
    for line in lines:
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        wanted = not marker or re.fullmatch(rf"""extra == ["']{extra}["']""", marker)
        if wanted and not re.match(r"tensorflow(?![\w-])", requirement):
            found.append(requirement)
    return found


def symbols(source: str) -> list[tuple[str, str]]:
    """Returns `(module, name)` of each symbol that `source` imports from TensorFlow's private modules.

    >>> symbols("from tensorflow.python.eager.record import could_possibly_record as records")
    [('tensorflow.python.eager.record', 'could_possibly_record')]
    """
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    private = [node for node in imports if (node.module or "").startswith("tensorflow.python")]
    return [(str(node.module), alias.name) for node in private for alias in node.names]


def environment(folder: Path, tensorflow: str) -> str:
    """Returns the Python of the environment in `folder`, and makes it first if it isn't there."""
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists() or done.read_text() != tensorflow:
        print(f"installing {tensorflow} in {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        needed = requirements(importlib.metadata.requires("tapeloop") or [], "dev")
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, tensorflow, *needed], check=True)
        subprocess.run([*pip, "--no-deps", "--editable", str(CHECKOUT)], check=True)
        done.write_text(tensorflow)
    return str(python)


def missing_symbols(python: str) -> list[str]:
    """Returns a line for each private symbol that the TensorFlow of `python` lacks."""
    asked = json.dumps(symbols(PRIVATE.read_text()))
    done = subprocess.run([python, "-c", PROBE], input=asked, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def failures(notes: Path) -> list[str]:
    """Returns the names of the failed tests in the notes of a pytest run."""
    read: list[dict[str, Any]] = [json.loads(line) for line in notes.read_text().splitlines()]
    return sorted({note["test"] for note in read if not note["passed"]})


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what is missing and what fails; returns 1 if anything does."""
    parser = argparse.ArgumentParser(prog="python -m tools.next_tensorflow", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--workdir", type=Path, required=True, help="where the environment and the notes stay")
    parser.add_argument("--tensorflow", default="tf-nightly", metavar="REQUIREMENT", help="what pip installs")
    parser.add_argument("tests", nargs="*", help="for pytest, in place of all plain tests")
    flags = parser.parse_args(arguments)
    folder = flags.workdir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    python, notes = environment(folder / "env", flags.tensorflow), folder / "notes.jsonl"
    version = "import tensorflow as tf; print(tf.__version__)"
    found = subprocess.run([python, "-c", version], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    lost = missing_symbols(python)
    print(f"TensorFlow {found}: {len(lost)} private symbols are missing", *lost, sep="\n", flush=True)
    if lost:
        return 1
    notes.write_text("")
    command = ["env", f"TEST_NOTES={notes}", python, "-m", "pytest", *flags.tests]
    code = subprocess.run(command, cwd=CHECKOUT, check=False).returncode
    failed = failures(notes)
    by_file = Counter(test.partition("::")[0] for test in failed)
    print(f"TensorFlow {found}: {len(failed)} tests failed", *failed, sep="\n")
    print(*(f"{number:5} {file}" for file, number in by_file.most_common()), sep="\n")
    return int(bool(failed or code))


if __name__ == "__main__":
    sys.exit(main())
