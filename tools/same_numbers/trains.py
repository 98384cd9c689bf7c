"""Trains the cases from stdin with the code of one checkout, each in a fork that has imported TensorFlow.

    python tools/same_numbers/trains.py CHECKOUT < cases.jsonl

It also runs revisions without this file, so it only uses their `trainers.main.main(flags)` and `trainers.launch`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

checkout = Path(sys.argv[1])
sys.path[0] = str(checkout)
os.environ["COLUMNS"] = "200"  # tables aren't folded

import tensorflow  # noqa: E402, F401  # before any fork, and before any of its operations has run

import trainers.session  # noqa: E402, F401
from trainers.main import main  # noqa: E402


def run(flags: list[str], folder: Path, output: Path) -> int:
    """Runs the command in a fork, in `folder`, and returns its exit code; `output` receives its output."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.chdir(folder)
            sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            code = main(flags)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def launch(words: list[str], flags: list[str], folder: Path, output: Path) -> int:
    """Runs the command in several processes, in `folder`, and returns the launcher's exit code."""
    command = [sys.executable, "-m", "trainers.launch", *words, "--", *flags]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with output.open("wb") as sink:
        return subprocess.run(command, cwd=folder, env=environment, stdout=sink, stderr=sink, check=False).returncode


for line in sys.stdin:
    case = json.loads(line)
    workdir = Path(case["workdir"])
    workdir.parent.mkdir(parents=True, exist_ok=True)
    flags = [flag.replace("CHECKOUT", str(checkout)) for flag in case["flags"]]
    codes: dict[str, int] = {}
    for mode in case["modes"]:
        where = (workdir.parent, workdir.parent / f"{workdir.name}.{mode}.txt")
        words = [*flags, f"--workdir={workdir}", f"--mode={mode}"]
        codes[mode] = launch(case["launch"], words, *where) if case["launch"] else run(words, *where)
        if codes[mode]:
            break
    print(json.dumps(codes), flush=True)
