"""Workers' lines, the signals that reach them, and their complete end."""

import re
import signal

import pytest

from tests.trainers.launch.launch_lab import HANG, HASTE, KILL_SELF, PATIENCE, Launcher, alive, gone, launched, pids

# --- output -----------------------------------------------------------------------------------------------------------


def test_lines_are_never_mixed_and_streams_stay_apart():
    """Each worker writes its lines in two pieces, so that every pipe holds half a line most of the time."""
    halves = """
        for i in range(20):
            for stream in (1, 2):
                os.write(stream, b"begin %d " % stream)
            time.sleep(0.001)
            for stream in (1, 2):
                os.write(stream, b"%d end\\n" % i)
        """
    code, out, err, _ = launched(halves, halves, halves)
    assert code == 0
    for text, stream in ((out, 1), (err, 2)):
        for worker in range(3):
            lines = [line for line in text.splitlines() if line.startswith(f"[worker {worker}]")]
            assert lines == [f"[worker {worker}] begin {stream} {i} end" for i in range(20)]


def test_line_without_its_end_is_shown_at_the_end():
    code, out, _, _ = launched("sys.stdout.write('whole\\nhalf'); sys.stdout.flush(); sys.exit(3)")
    assert code == 3
    assert out.splitlines()[1:] == ["[worker 0] whole", "[worker 0] half"]


def test_last_words_of_a_worker_that_dies_unlooked_at_are_shown():
    """Its pipe is full when it dies, while another worker's line is being written."""
    last_words = f"hear('now')\nos.write(1, b'x' * 65_000)\n{KILL_SELF}"
    code, out, _, _ = launched(last_words, "hear('0.0')\nprint('go on')", at={"[worker 1]": ("gone", "now")})
    assert code == 6
    assert f"[worker 0] {'x' * 65_000}" in out.splitlines()


def test_children_of_a_worker_end_with_it():
    child = "print(subprocess.Popen(['sleep', '100']).pid)"
    code, out, _, _ = launched(child)
    assert code == 0
    assert gone(int(re.search(r"\[worker 0\] (\d+)", out)[1]))


# --- signals: a launcher that is looked at ----------------------------------------------------------------------------


@pytest.fixture
def start():
    """Starts a launcher of these programs, and waits until each has printed `ready`."""
    launchers = []

    def start(*texts, deadline=PATIENCE):
        launcher = Launcher(*texts, deadline=deadline)
        launchers.append(launcher)
        lines = [launcher.stdout.readline()]
        while sum("ready" in line for line in lines) < len(texts):
            lines.append(launcher.stdout.readline())
            assert lines[-1], launcher.communicate()
        return launcher, pids(lines[0])

    yield start
    for launcher in launchers:
        launcher.end()


SAVES = """
def save(number, frame):
    print("saved after", signal.Signals(number).name)
    sys.exit(75)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, save)
print("ready")
time.sleep(100)
"""
DEAF = """
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: print("heard", number))
print("ready")
while True:
    time.sleep(100)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_goes_to_all_and_nothing_starts_again(start, number):
    launcher, workers = start(SAVES, SAVES)
    launcher.send_signal(number)
    out, err = launcher.communicate()
    assert launcher.returncode == 75
    assert {f"[worker {i}] saved after {number.name}" for i in range(2)} <= set(out.splitlines())
    assert f"error: stopped by {number.name}." in err
    assert "started" not in out
    assert not any(alive(pid) for pid in workers)


WARNED = """
heard = []
signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
print("ready")
while not heard:
    time.sleep(0.005)
print("saved")
"""


def test_warning_goes_to_all_and_stops_none(start):
    launcher, _ = start(WARNED, WARNED)
    launcher.send_signal(signal.SIGUSR1)
    out, err = launcher.communicate()
    assert (launcher.returncode, err) == (0, "")
    assert {f"[worker {i}] saved" for i in range(2)} <= set(out.splitlines())


def test_worker_that_was_not_ready_for_the_signal_is_no_other_failure(start):
    launcher, _ = start("print('ready')\n" + HANG, SAVES)
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate()
    assert launcher.returncode == 75
    assert "stopped by SIGTERM" in err


def test_failure_while_stopping_keeps_its_own_code(start):
    fails = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nprint('ready')\n" + HANG
    launcher, _ = start(SAVES, fails, "print('ready')\n" + HANG)
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate()
    assert launcher.returncode == 5
    assert "worker 1 ended with 5 (checkpoint)" in err


def test_worker_that_ignores_the_signal_is_killed_when_the_others_have_stopped(start):
    launcher, workers = start(DEAF, SAVES, deadline=HASTE)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait() == 75
    assert not any(alive(pid) for pid in workers)


def test_second_interrupt_kills(start):
    launcher, workers = start(DEAF, DEAF)
    launcher.send_signal(signal.SIGINT)
    for _ in workers:
        assert "heard 2" in launcher.stdout.readline()
    assert all(alive(pid) for pid in workers)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait() == 75
    assert not any(alive(pid) for pid in workers)


def test_workers_do_not_outlive_a_launcher_that_is_killed(start):
    launcher, workers = start(DEAF, DEAF)
    assert all(alive(pid) for pid in workers)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    assert all(gone(pid) for pid in workers)


def test_reader_that_leaves_ends_everything(start):
    launcher, workers = start("print('ready')\nwhile True: print('more'); time.sleep(0.001)")
    launcher.stdout.close()
    assert launcher.wait() != 0
    assert not any(alive(pid) for pid in workers)
