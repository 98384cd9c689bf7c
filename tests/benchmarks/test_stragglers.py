"""`benchmarks.stragglers`: slowing a process, the numbers that count, and a short real measurement."""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from benchmarks import running, stragglers
from benchmarks.machine import machine
from benchmarks.simulate import here, straggling
from benchmarks.simulate.__main__ import MEASURED
from benchmarks.simulate.measure import Size
from benchmarks.simulate.model import Job, Link, Servers, local_step_seconds, step_seconds
from benchmarks.slowed import due, slowed
from tests.benchmarks import forks
from tests.commands import CHECKOUT, environment

RUN = {"products": 4, "even": [100.0, 80.0, 90.0], "slow": [20.0, 24.0, 27.0]}  # 0.2, 0.3 and 0.3 are kept


def state(pid: int) -> str:
    """Returns the process's state: `T` if it is stopped."""
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def test_stop_makes_up_for_sleeps_that_were_too_long():
    ran = elapsed = 0.0
    for overslept in (0.0, 2.0, 7.0, 1.0):
        ran, elapsed = ran + 4.0 + overslept, elapsed + 4.0 + overslept
        elapsed += due(ran, elapsed, 5.0)
        assert elapsed == 5 * ran
        elapsed += overslept  # the stop was too long as well: the next is shorter
    assert due(1.0, 9.0, 5.0) == 0.0


def test_slowed_process_is_stopped_again_and_again_and_resumes():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with slowed(process.pid, 5.0):
            seen, until = [False], time.monotonic() + 60.0
            while len(seen) < 5:  # stopped, running, stopped, running
                assert time.monotonic() < until
                if (stopped := state(process.pid) == "T") != seen[-1]:
                    seen.append(stopped)
        assert state(process.pid) != "T"
    finally:
        process.kill()
        process.wait()


def test_kept_is_the_rate_over_the_one_just_before():
    found = {"runs": {"synchronous, 30 ms": RUN}}
    assert stragglers.kept(RUN) == pytest.approx([0.2, 0.3, 0.3])
    assert "| synchronous, 30 ms | 4 | 90.0 | 24.0 | 0.30 | 0.20 to 0.30 |" in stragglers.rows_of(found)
    assert stragglers.picture(found).count("<circle") == 1


def test_measured_runs_are_not_measured_again(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(stragglers, "turns", lambda mode, ms, *_: asked.append(ms) or RUN)
    begun = {"machine": machine(), "products_per_ms": 1.0, "runs": {"synchronous, 3 ms": RUN}}
    (tmp_path / "s.json").write_text(json.dumps(begun))
    for _ in range(2):
        stragglers.measure(tmp_path / "s.json", modes=["synchronous"], milliseconds=[3, 30], rounds=1)
    assert asked == [30]
    assert list(json.loads((tmp_path / "s.json").read_text())["runs"]) == ["synchronous, 3 ms", "synchronous, 30 ms"]


def test_model_has_no_error_if_runs_are_as_it_says():
    """Uses two workers, one four times slower, that compute for 10 ms and add up in 2."""
    machines = here.Here(Link(1e-3, float("inf")), spread=0.0, product=0.01)
    job = Job(0.01, Size(1, 0).gradients)
    rates = {
        straggling.ALONE: lambda slow: 100 / slow,
        straggling.SYNCHRONOUS: lambda slow: 2 / step_seconds(job, machines.network, 2, slow=slow),
        straggling.LOCAL: lambda slow: 2 / local_step_seconds(
            job, machines.network, 2, local_steps=stragglers.LOCAL_STEPS, state=job.gradients, slow=slow
        ),
        straggling.ASYNCHRONOUS: lambda slow: (1 + 1 / slow) / (0.01 + 0.004),
    }  # fmt: skip
    found = {
        "runs": {
            f"{mode}, {ms} ms": {"products": 1, "even": [rate(1.0)], "slow": [rate(4.0)]}
            for mode, rate in rates.items()
            for ms in (3, 30)
        }
    }
    checks = list(straggling.checks(found, machines, Servers(exchange=0.004, locked=0.001)))
    assert len(checks) == 12  # per rate: the rate and its kept part, of three by two
    assert [check.error for check in checks] == pytest.approx([0.0] * 12)


def test_page_is_right_that_asynchronous_workers_continue():
    found = json.loads(MEASURED.read_text())["stragglers"]["runs"]
    for ms in stragglers.MILLISECONDS:
        waiting, going_on = (stragglers.kept(found[f"{mode}, {ms} ms"]) for mode in ("synchronous", "asynchronous"))
        assert median(going_on) > max(0.5, median(waiting))


def started(*flags, cwd):
    """Starts the command in `cwd`."""
    words = [sys.executable, "-m", "benchmarks.stragglers", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(words, cwd=cwd, env={**environment(), "PYTHONPATH": str(CHECKOUT)}, text=True, **pipes)


def test_help_needs_no_tensorflow():
    guarded = "import runpy, sys; sys.modules['tensorflow'] = None; sys.argv = ['stragglers', '--help']; "
    run = "runpy.run_module('benchmarks.stragglers', run_name='__main__')"
    words = [sys.executable, "-c", guarded + run]
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "--rounds" in done.stdout


@pytest.mark.long
def test_real_runs_are_measured_in_one_round_of_short_steps(tmp_path, monkeypatch):
    modes = [f"local steps, {stragglers.LOCAL_STEPS} a round", "asynchronous"]
    for name, value in {"LOGGED_SECONDS": 0.06, "LOGGED": 20 * stragglers.ROWS, "LEAST_SECONDS": 0.1}.items():
        monkeypatch.setattr(stragglers, name, value)
    monkeypatch.setattr(running, "subprocess", forks)
    monkeypatch.setattr(stragglers.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["stragglers", "--rounds=1", "--ms", "3", "--picture=p.svg", "--only", *modes])
    monkeypatch.chdir(tmp_path)
    stragglers.main()
    found = json.loads((tmp_path / "stragglers.json").read_text())
    assert list(found["runs"]) == [f"{mode}, 3 ms" for mode in modes]
    assert all(run["even"][0] > 0 and run["slow"][0] > 0 for run in found["runs"].values())
    assert (tmp_path / "p.svg").read_text().count("<circle") == len(modes)


@pytest.mark.long
def test_stopped_command_leaves_no_process(tmp_path):
    process = started("--ms", "3", "--only", "one process", cwd=tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (begun := children.read_text().split()):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode != 0
    until = time.monotonic() + 30
    while left := [child for child in begun if Path(f"/proc/{child}").exists()]:
        assert time.monotonic() < until, left
        time.sleep(0.05)
