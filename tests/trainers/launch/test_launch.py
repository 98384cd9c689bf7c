"""The worker that caused a failure, restarts of all workers, and refused flags."""

import json
import re
import socket
import subprocess
import sys

import pytest

from tests import ports
from tests.commands import CONFIGS, environment, launch, one_paragraph
from tests.trainers.launch.launch_lab import HANG, HASTE, KILL_SELF, SOON, STOP_SELF, alive, launched, pids
from trainers.launch.__main__ import main, parse
from trainers.launch.commands import free_ports, worker_commands
from trainers.launch.endings import Ending, find_cause, may_pass
from trainers.launch.network import choose_network

# --- endings ----------------------------------------------------------------------------------------------------------


def test_workers_all_finish():
    code, out, err, attempts = launched("print('one')", "print('two')", "print('three')")
    assert (code, err, attempts) == (0, "", 1)
    assert {"[worker 0] one", "[worker 1] two", "[worker 2] three"} < set(out.splitlines())


@pytest.mark.parametrize("number", [1, 5])
def test_failure_that_would_come_again_is_passed_on_without_a_restart(number):
    code, _, err, attempts = launched(f"sys.exit({number})", f"sys.exit({number})", max_restarts=3)
    assert (code, attempts) == (number, 1)
    assert err.startswith("error: worker ")
    assert f" ended with {number} (" in err
    assert err.count("\n") == 1


def test_worker_that_failed_because_another_did_is_not_the_cause():
    """Worker 0 ends first, with 6; worker 1, which caused it, needs longer to end."""
    code, _, err, _ = launched("sys.exit(6)", "rest(0); sys.exit(4)", "sys.exit(6)")
    assert code == 4
    assert "worker 1 ended with 4 (data)" in err


def test_killed_worker_is_named_and_makes_exit_code_6():
    code, _, err, _ = launched("rest(1); sys.exit(6)", KILL_SELF)
    assert code == 6
    assert "worker 1 was killed by SIGKILL" in err
    assert "`--max_restarts` is 0" in err


def test_worker_that_aborts_is_reported_with_the_place_of_its_last_lines():
    code, _, err, _ = launched("os.abort()")
    assert code == 6
    assert "worker 0 was killed by SIGABRT (TensorFlow's C++ code aborted" in err
    assert "`native_stderr` log" in err


def test_killed_worker_starts_all_again():
    dies_once = f"print('attempt', attempt)\nif attempt < 1: {KILL_SELF}"
    loses_it = "print('attempt', attempt); sys.exit(0 if attempt else 6)"
    code, out, err, attempts = launched(loses_it, dies_once, max_restarts=2)
    assert (code, err, attempts) == (0, "", 2)
    killed = "worker 1 was killed by SIGKILL (if not sent on purpose: out of memory)"
    again = f"{killed}: starting all again from the last checkpoint (1 of 2 restarts left)"
    assert again in out.splitlines()
    assert [line for line in out.splitlines() if "worker 0] attempt" in line] == [
        "[worker 0] attempt 0",
        "[worker 0] attempt 1",
    ]


@pytest.mark.parametrize(("end", "code"), [(KILL_SELF, 6), ("sys.exit(6)", 6), ("sys.exit(75)", 75)])
def test_restarts_run_out(end, code):
    found, out, err, attempts = launched(end, max_restarts=2)
    assert (found, attempts) == (code, 3)
    assert re.findall(r"\((\d) of 2 restarts left\)", out) == ["1", "0"]
    assert "none of its 2 restarts is left" in err


def test_worker_that_hangs_after_a_failure_is_killed_after_the_deadline():
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANG
    code, out, err, _ = launched(deaf, "sys.exit(3)", deadline=HASTE)
    assert code == 3
    assert "worker 1 ended with 3 (not finite)" in err
    assert not any(alive(pid) for pid in pids(out))


def test_stopped_worker_is_killed_named_as_the_one_that_hung_and_costs_a_restart():
    stops_once = f"if attempt < 1: {STOP_SELF}"
    code, out, err, attempts = launched("rest(1); sys.exit(0 if attempt else 6)", stops_once, deadline=HASTE)
    assert (code, attempts) == (6, 1)
    assert "worker 1 hung" in err
    assert f"{HASTE} s" in err
    assert not any(alive(pid) for pid in pids(out))
    again = ("rest(1); sys.exit(0 if attempt else 6)", stops_once)
    code, _, _, attempts = launched(*again, max_restarts=1, deadline=SOON)
    assert (code, attempts) == (0, 2)


def test_worker_that_never_ends_when_the_others_have_finished_is_an_error():
    code, out, err, _ = launched("pass", HANG, deadline=HASTE)
    assert code == 6
    assert "worker 1 hung" in err
    assert not any(alive(pid) for pid in pids(out))


@pytest.mark.parametrize(
    ("endings", "index"),
    [
        ([Ending(0, 6), Ending(1, -9), Ending(2, 6)], 1),
        ([Ending(2, 2), Ending(1, 3)], 2),
        ([Ending(2, 6), Ending(0, 6)], 2),
        ([Ending(0, 6), Ending(1, -9, overdue=True)], 1),
        ([Ending(0, 6), Ending(1, -9, overdue=True), Ending(2, 75)], 2),
        ([Ending(0, 75), Ending(1, 5), Ending(2, 75)], 1),
    ],
)
def test_cause_is_the_first_that_failed_by_itself(endings, index):
    assert find_cause(endings).index == index


def test_restarts_are_for_failures_that_may_pass():
    assert {code for code in (-15, -9, -6, 1, 2, 3, 4, 5, 6, 7, 75) if may_pass(Ending(0, code))} == {
        -15,
        -9,
        -6,
        6,
        75,
    }


# --- the command ------------------------------------------------------------------------------------------------------


def test_workers_get_the_same_cluster_and_their_own_place():
    network = choose_network(open_ports=True)
    commands = worker_commands(3, ["--gin_file=a.gin", "--workdir=b"], network)
    (token,) = {each.environment["TAPELOOP_TOKEN"] for each in commands}
    assert len(token) == 64
    assert token != worker_commands(1, [], network)[0].environment["TAPELOOP_TOKEN"]
    configs = [json.loads(each.environment["TF_CONFIG"]) for each in commands]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": i} for i in range(3)]
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    addresses = configs[0]["cluster"]["worker"]
    assert len({address for address in addresses if re.fullmatch(r"127\.0\.0\.1:\d+", address)}) == 3
    for each in commands:
        assert list(each.arguments) == [sys.executable, "-m", "trainers.main", "--gin_file=a.gin", "--workdir=b"]


def test_ports_of_each_attempt_are_free():
    for port in free_ports(5):
        with socket.socket() as other:
            other.bind(("", port))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--workers=0", "--", "--gin_file=a"], "`--workers` is 0"),
        (["--workers=1000000", "--", "--gin_file=a"], "`--workers` is 1000000"),
        (["--workers=two", "--", "--gin_file=a"], "'two'"),
        (["--", "--gin_file=a"], "--workers"),
        (["--workers=2", "--gin_file=a"], "after a `--`"),
        (["--workers=2", "--restarts=1", "--", "--gin_file=a"], "--restarts=1"),
        (["--workers=2", "--max_restarts=-1", "--", "--gin_file=a"], "`--max_restarts` is -1"),
        (["--workers=2", "--deadline=0", "--", "--gin_file=a"], "`--deadline` is 0"),
        (["--workers=2", "--deadline=nan", "--", "--gin_file=a"], "`--deadline` is nan"),
        (["--workers=2", "two", "--", "--gin_file=a"], "`two` belongs to no flag"),
        (["--workers=2", "--worker=3", "--", "--gin_file=a"], "Did you mean `--workers`?"),
        (["--workers=2"], "the flags of `trainers.main` are missing: put them after a separate `--`"),
        (["--workers=2", "--"], "--gin_file"),
        (["--workers=2", "--", "--gin_file=a", "--", "--eager"], "`--` belongs to no flag"),
        (["--workers=2", "--", "--gin_file=a", "--mode=trian"], "Did you mean `train`?"),
    ],
)
def test_wrong_flags_are_refused_before_anything_starts(flags, says, capfd):
    assert main(flags) == 2
    out, err = capfd.readouterr()
    assert out == ""
    one_paragraph(err, says)


def test_flags_behind_the_dashes_are_main_s_own():
    parsed = parse(["--workers=2", "-v=1", "--", "--gin_file=a", "--workdir", "b"])
    assert (parsed.flags.workers, parsed.flags.max_restarts, parsed.flags.deadline) == (2, 0, 60.0)
    assert parsed.flags.verbosity == 1
    assert parsed.main_flags == ["--gin_file=a", "--workdir", "b"]


def test_broken_configuration_ends_all_workers_with_2_and_no_restart(tmp_path):
    (tmp_path / "broken.gin").write_text("Trainer.steps = = 3\n")
    flags = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--gin_file=broken.gin"]
    done = launch("--workers=2", "--max_restarts=3", "--", *flags, cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert re.fullmatch(r"error: worker [01] ended with 2 \(configuration\)\. Its own message is above\.", lines[-1])
    for i in range(2):
        assert any(line.startswith(f"[worker {i}] error: ") and "broken.gin" in line for line in lines)
    assert done.stdout.count("started") == 1


@pytest.mark.long
def test_reader_that_leaves_changes_nothing(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "trainers.launch", *ports.flags(), "--workers=2", "--", "--gin_file=none.gin"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(60) == 2
    assert "no such gin file" in err
    assert re.fullmatch(
        r"error: worker [01] ended with 2 \(configuration\)\. Its own message is above\.", err.splitlines()[-1]
    )
    process.stderr.close()
