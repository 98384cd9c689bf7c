"""Small programs as runs: how many at once, what becomes of signals, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

from trainers.launch.processes import Signals
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


def ran(jobs, *, at_once=1, meanwhile=lambda: None, last=None):
    """The exit codes by name; `meanwhile` is called in a thread, and there is no going on after `last`."""
    codes = {}

    def ended(job, code, seconds):
        codes[job.name] = code
        return job.name != last

    thread = threading.Thread(target=meanwhile)
    with Signals() as signals:
        thread.start()
        run_jobs(jobs, at_once=at_once, signals=signals, ended=ended)
        thread.join()
    return codes


def test_all_run_and_what_they_say_is_kept(tmp_path):
    texts = [
        "print('one')",
        "import sys; print('two', file=sys.stderr); sys.exit(3)",
        "import os; os.kill(os.getpid(), 9)",
    ]
    assert ran(jobs_of(tmp_path / "logs", *texts)) == {"0": 0, "1": 3, "2": -9}
    assert [(tmp_path / "logs" / f"{i}.log").read_text() for i in range(3)] == ["one\n", "two\n", ""]


def test_no_more_run_at_once_than_may(tmp_path):
    text = f"""
        import os, time
        os.mkdir(f"{tmp_path}/at{{os.getpid()}}")
        time.sleep(0.3)
        print(len([x for x in os.listdir("{tmp_path}") if x.startswith("at")]))
        os.rmdir(f"{tmp_path}/at{{os.getpid()}}")
    """
    for at_once in (1, 2):
        codes = ran(jobs_of(tmp_path, *[text] * 4), at_once=at_once)
        assert set(codes.values()) == {0}
        seen = [int((tmp_path / f"{i}.log").read_text().splitlines()[-1]) for i in range(4)]
        assert max(seen) <= at_once


def test_a_signal_is_passed_on_and_nothing_starts_after_it(tmp_path):
    jobs = jobs_of(tmp_path, HEAR, HEAR.replace("sys.exit", "time.sleep(0.5), sys.exit"), HEAR)

    def stop():
        wait_for(lambda: all(job.log.exists() and "ready" in job.log.read_text() for job in jobs[:2]))
        os.kill(os.getpid(), signal.SIGTERM)

    assert ran(jobs, at_once=2, meanwhile=stop) == {"0": 75, "1": 75}
    assert [job.log.exists() for job in jobs] == [True, True, False]
    assert f"heard {signal.SIGTERM:d}" in jobs[0].log.read_text()


def test_where_it_is_not_to_go_on_those_that_run_may_save(tmp_path):
    jobs = jobs_of(
        tmp_path, HEAR, f"import os, time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.02)", HEAR
    )

    def go():
        wait_for(lambda: jobs[0].log.exists() and "ready" in jobs[0].log.read_text())
        (tmp_path / "go").touch()

    assert ran(jobs, at_once=2, meanwhile=go, last="1") == {"1": 0, "0": 75}
    assert not jobs[2].log.exists()


def test_a_second_ctrl_c_kills_what_does_not_hear(tmp_path):
    jobs = jobs_of(tmp_path, DEAF)

    def stop():
        wait_for(lambda: jobs[0].log.exists() and "ready" in jobs[0].log.read_text())
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
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
        with Signals() as signals:
            run_jobs([job], at_once=1, signals=signals, ended=print)
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
