"""A chief, a server and workers under `launch`: whose end ends all, and which restart alone."""

import itertools
import json

import pytest

from core.errors import ConfigurationError
from tests.commands import CONFIGS, launch
from tests.trainers.launch.launch_lab import HANG, HASTE, KILL_SELF, SOON, STOP_SELF, alive, launched, pids
from trainers.launch.__main__ import parse
from trainers.launch.commands import served_commands
from trainers.launch.network import choose_network
from trainers.launch.process_group import Restarts

SERVES = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nsay(f'{index} ready')\n" + HANG
STOPS = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\nsay(f'{index} ready')\n" + HANG


def led(*texts, **settings):
    return launched(*texts, led=True, **settings)


def hear(*indices):
    """Makes a worker wait until these are ready."""
    return "\n".join([*(f"hear('{i} ready')" for i in indices), ""])


def test_chief_that_has_finished_ends_all_and_their_codes_do_not_matter():
    code, out, err, _ = led(hear(1, 2) + "print('done')", SERVES, STOPS, HANG)
    assert (code, err) == (0, "")
    assert "[chief] done" in out.splitlines()
    assert not any(alive(pid) for pid in pids(out))


@pytest.mark.parametrize("number", [2, 75])
def test_chief_s_end_is_the_end_of_all(number):
    code, _, err, attempts = led(hear(1, 2) + f"sys.exit({number})", STOPS, SERVES)
    assert (code, attempts) == (number, 1)
    assert err.startswith(f"error: chief ended with {number} (")


def test_worker_that_is_dismissed_before_the_chief_has_ended_is_no_ending():
    code, _, err, _ = led("rest(1); rest(2); sys.exit(75)", "pass", "pass")
    assert code == 75
    assert "chief ended with 75" in err


def test_chief_that_never_ends_when_it_has_dismissed_all_is_an_error():
    code, out, err, _ = led(HANG, "pass", deadline=HASTE)
    assert code == 6
    assert "chief hung" in err
    assert not any(alive(pid) for pid in pids(out))


@pytest.mark.parametrize(
    ("chief", "ps", "name"),
    [
        (hear(1, 2) + KILL_SELF, SERVES, "chief"),
        (STOPS, hear(0, 2) + f"if not attempt: {KILL_SELF}\n" + SERVES, "ps 0"),
    ],
    ids=["chief", "server"],
)
def test_without_chief_or_server_all_start_again(chief, ps, name):
    once = "if attempt: sys.exit(0)\n"
    code, out, err, attempts = led(once + chief, ps, STOPS, max_restarts=1)
    assert (code, err, attempts) == (0, "", 2)
    assert f"{name} was killed by SIGKILL (if not sent on purpose: out of memory): starting all again" in out
    assert "(0 of 1 restarts left)" in out
    assert not any(alive(pid) for pid in pids(out))


def test_worker_restarts_alone_while_the_others_continue():
    dies_once = f"""
if not os.path.exists(f"{{here}}/died"):
    say("died")
    {KILL_SELF}
"""
    code, out, err, attempts = led(hear(2), SERVES, dies_once + SERVES, SERVES, max_restarts=2)
    assert (code, err, attempts) == (0, "", 1)
    assert "the others continue, and it restarts in 1 s" in out
    assert "starting worker 0 again (1 of 2 restarts left)" in out
    assert [line.count("(process") for line in out.splitlines() if line.startswith("started")] == [4, 1]
    assert not any(alive(pid) for pid in pids(out))


@pytest.mark.parametrize("end", [KILL_SELF, "sys.exit(75)", "sys.exit(6)"])
def test_worker_for_which_no_restart_is_left_is_done_without(end):
    seen = {"no restart is left": ("say", "seen")}
    code, out, err, _ = led("hear('seen')", SERVES, end, SERVES, at=seen)
    assert (code, err) == (0, "")
    assert "worker 0 " in out
    assert "and no restart is left for it: the others continue" in out


def test_run_without_any_worker_ends():
    seen = {"the others continue": ("say", "seen")}
    code, out, err, _ = led(STOPS, SERVES, KILL_SELF, "hear('seen')\n" + KILL_SELF, at=seen)
    assert code == 6
    assert "the others continue" in out
    assert "was killed by SIGKILL" in err
    assert "`--max_restarts` is 0" in err


def test_worker_whose_failure_would_come_again_ends_all():
    code, _, err, attempts = led(STOPS, SERVES, "sys.exit(2)", SERVES, max_restarts=3)
    assert (code, attempts) == (2, 1)
    assert "worker 0 ended with 2 (configuration)" in err


def test_worker_that_hangs_in_the_end_is_killed_and_no_failure():
    code, out, err, _ = led(hear(1) + "rest(2)", SERVES, STOP_SELF, deadline=SOON)
    assert (code, err) == (0, "")
    assert not any(alive(pid) for pid in pids(out))


def test_server_that_hangs_is_named_though_the_chief_ended_first():
    code, _, err, _ = led(hear(2) + "rest(1); sys.exit(6)", STOP_SELF, SERVES, deadline=HASTE)
    assert code == 6
    assert "ps 0 hung" in err


def test_restarts_alone_and_together_are_counted_as_one():
    restarts = Restarts(2)
    assert list(itertools.islice(iter(restarts.take, None), 3)) == [True, True, False]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--ps=1"], "`--ps` is 1, but `--workers` is missing"),
        (["--workers=2", "--ps=0"], "`--ps` is 0"),
        (["--workers=2", "--ps=300"], "`--ps` is 300"),
        (["--workers=2", "--ps=1", "--min_workers=1"], "`--min_workers` has no effect with `--ps`"),
    ],
)
def test_wrong_flags_are_refused(flags, says):
    with pytest.raises(ConfigurationError) as caught:
        parse([*flags, "--", "--gin_file=a"])
    assert says in str(caught.value)


def test_members_get_the_same_cluster_and_their_own_place():
    commands = served_commands(2, 1, ["--gin_file=a.gin"], choose_network(open_ports=True))
    assert [each.name for each in commands] == ["chief", "ps 0", "worker 0", "worker 1"]
    assert [(each.follows, each.spare) for each in commands] == [(False, False), (True, False), *2 * [(True, True)]]
    configs = [json.loads(each.environment["TF_CONFIG"]) for each in commands]
    places = [f"{task['type']} {task['index']}" for task in (config["task"] for config in configs)]
    assert places == ["chief 0", "ps 0", "worker 0", "worker 1"]
    assert {job: len(found) for job, found in configs[0]["cluster"].items()} == {"chief": 1, "ps": 1, "worker": 2}
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    assert len({each.environment["TAPELOOP_TOKEN"] for each in commands}) == 1


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["one_device", "multi_worker"])
def test_servers_end_quietly_where_the_strategy_has_no_use_for_them(strategy, tmp_path):
    flags = [f"--gin_file={CONFIGS / name}.gin" for name in ("digits_linear", f"runtime/{strategy}")]
    done = launch("--workers=1", "--ps=1", "--", *flags, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    chief, launcher = done.stderr.splitlines()
    assert chief.startswith("[chief] error: ")
    assert "--gin_file=configs/runtime/parameter_server.gin`" in chief
    assert launcher == "error: chief ended with 2 (configuration). Its own message is above."
    assert not any(alive(pid) for pid in pids(done.stdout))
