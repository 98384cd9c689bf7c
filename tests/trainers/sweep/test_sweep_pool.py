"""Small programs as runs: how many in parallel, the signals that reach them, and their complete end."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from trainers.launch.processes import Signals
from trainers.sweep import pool
from trainers.sweep.pool import Job, run_jobs

HEAR = """
import signal, sys, time
def stop(number, frame):
    print("heard", number, flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(100)
"""
DEAF = 'import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint("ready", flush=True)\ntime.sleep(100)'
LIMIT = 60.0


def jobs_of(folder, *texts):
    command = [sys.executable, "-S", "-u", "-c"]
    return [Job(str(i), [*command, textwrap.dedent(text)], folder / f"{i}.log") for i, text in enumerate(texts)]


def wait_for(condition):
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def ran(jobs, *, at_once=1, meanwhile=lambda signals: None, last=None):
    """Returns the exit codes by name; `meanwhile` is called in a thread, and no job starts after `last` has ended."""
    codes = {}

    def ended(job, code, seconds):
        codes[job.name] = code
        return job.name != last

    with Signals() as signals:
        thread = threading.Thread(target=meanwhile, args=[signals])
        thread.start()
        waiting = [*reversed(jobs)]
        run_jobs(lambda: waiting.pop() if waiting else None, at_once=at_once, signals=signals, ended=ended)
        thread.join()
    return codes


def test_jobs_all_run_and_their_output_is_kept(tmp_path):
    texts = [
        "print('one')",
        "import sys; print('two', file=sys.stderr); sys.exit(3)",
        "import os; os.kill(os.getpid(), 9)",
    ]
    assert ran(jobs_of(tmp_path / "logs", *texts)) == {"0": 0, "1": 3, "2": -9}
    assert [(tmp_path / "logs" / f"{i}.log").read_text() for i in range(3)] == ["one\n", "two\n", ""]


@pytest.mark.long
@pytest.mark.parametrize("at_once", [1, 2])
def test_jobs_run_at_once_as_many_as_may(at_once, tmp_path, monkeypatch):
    began, counts = [], []

    def start(job):
        began.append(begin(job))
        counts.append(sum(each.process.returncode is None for each in began))
        return began[-1]

    begin = pool._start
    monkeypatch.setattr(pool, "_start", start)
    assert set(ran(jobs_of(tmp_path, *["pass"] * 3), at_once=at_once).values()) == {0}
    assert max(counts) == at_once


def test_signal_is_passed_on_and_nothing_starts_after_it(tmp_path):
    jobs = jobs_of(tmp_path, HEAR, HEAR.replace("sys.exit", "time.sleep(0.2), sys.exit"), HEAR)

    def stop(signals):
        wait_for(lambda: all(job.log.exists() and "ready" in job.log.read_text() for job in jobs[:2]))
        os.kill(os.getpid(), signal.SIGTERM)

    assert ran(jobs, at_once=2, meanwhile=stop) == {"0": 75, "1": 75}
    assert [job.log.exists() for job in jobs] == [True, True, False]
    assert f"heard {signal.SIGTERM:d}" in jobs[0].log.read_text()


def test_jobs_that_run_may_save_when_no_more_may_start(tmp_path):
    jobs = jobs_of(
        tmp_path, HEAR, f"import os, time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.02)", HEAR
    )

    def go(signals):
        wait_for(lambda: jobs[0].log.exists() and "ready" in jobs[0].log.read_text())
        (tmp_path / "go").touch()

    assert ran(jobs, at_once=2, meanwhile=go, last="1") == {"1": 0, "0": 75}
    assert not jobs[2].log.exists()


def test_second_ctrl_c_kills_what_does_not_hear(tmp_path):
    jobs = jobs_of(tmp_path, DEAF)

    def stop(signals):
        wait_for(lambda: jobs[0].log.exists() and "ready" in jobs[0].log.read_text())
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(lambda: signals.received)
        os.kill(os.getpid(), signal.SIGINT)

    assert ran(jobs, meanwhile=stop) == {"0": -9}


def test_runs_die_with_the_sweep_that_is_killed(tmp_path):
    text = f"""
        import sys
        from pathlib import Path
        from trainers.launch.processes import Signals
        from trainers.sweep.pool import Job, run_jobs
        child = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
        job = Job("a", [sys.executable, "-S", "-c", child], Path({str(tmp_path / "log")!r}))
        jobs = [job]
        with Signals() as signals:
            run_jobs(lambda: jobs.pop() if jobs else None, at_once=1, signals=signals, ended=print)
    """
    sweep = subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)])
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    sweep.kill()
    sweep.wait()

    def gone():
        try:
            return Path(f"/proc/{int(log.read_text())}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_for(gone)
