"""Lost workers that aren't replaced: the next size, removed hosts, and the wait while there are too few."""

import re
import signal

import pytest

from core.errors import ConfigurationError
from tests.commands import CHECKOUT, CONFIGS, python
from tests.trainers.launch.launch_lab import HASTE, KILL_SELF, launched, pids
from trainers import main as command
from trainers.launch import count
from trainers.launch.__main__ import main, parse
from trainers.launch.elastic import Roster, Sharing, read_sharing
from trainers.launch.endings import Ending

FLAGS = [f"--gin_file={CONFIGS / 'digits_mlp.gin'}", f"--gin_file={CONFIGS / 'runtime' / 'multi_worker.gin'}"]


def roster(workers=2, fewest=1, batch=64, microbatches=1):
    return Roster(workers, fewest=fewest, sharing=Sharing(batch, microbatches))


# --- how many ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "microbatches", "left", "count"),
    [(64, 1, 4, 4), (64, 1, 3, 2), (60, 1, 7, 6), (64, 2, 64, 32), (64, 64, 5, 1), (7, 1, 6, 1), (7, 2, 6, 0)],
)
def test_workers_start_as_many_as_can_share_a_step(batch, microbatches, left, count):
    assert Sharing(batch, microbatches).largest(left) == count


def test_roster_takes_an_idle_place_when_another_is_lost():
    crew = roster(workers=4)
    counts = []
    for _ in range(4):
        crew.lose([Ending(0, -9), Ending(1, 6)])
        counts.append(crew.count)
    assert counts == [2, 2, 1, 0]


@pytest.mark.parametrize(
    ("endings", "lost"),
    [
        ([Ending(0, 6), Ending(1, -9), Ending(2, 6)], 1),
        ([Ending(0, -9), Ending(1, -11), Ending(2, 6)], 2),
        ([Ending(0, 6), Ending(1, -9, overdue=True)], 1),
        ([Ending(2, -9), Ending(0, -9, overdue=True), Ending(1, -9, overdue=True)], 1),
        ([Ending(0, 75), Ending(1, 75)], 0),
        ([Ending(0, 6), Ending(1, 6)], 0),
    ],
    ids=["killed", "two at once", "hung", "those who hung because one was killed", "stopped", "parted by the network"],
)
def test_roster_strikes_off_those_that_died_by_themselves(endings, lost):
    crew = roster(workers=5)
    crew.lose(endings)
    assert crew.left == 5 - lost


def test_roster_that_can_never_start_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"`--min_workers` is 3, but of 3 workers at most 2 .*in 2 microbatches"
    ):
        roster(workers=3, fewest=3, microbatches=2)
    with pytest.raises(ConfigurationError, match=r"evenly: give a `Trainer.global_batch_size` that `Trainer.micro"):
        roster(batch=7, microbatches=2)


# --- what the gin files say -------------------------------------------------------------------------------------------


def sharing_of(*params):
    return read_sharing(command.parse([*FLAGS, *(f"--gin_param={param}" for param in params)]))


def test_sharing_is_read_from_the_gin_files_through_macros():
    assert sharing_of() == Sharing(32, 1)
    named = ["trainers.settings.Trainer.global_batch_size = %rows", "rows = %half", "half = 48"]
    assert sharing_of(*named, "Trainer.microbatches = 3") == Sharing(48, 3)


@pytest.mark.parametrize(
    ("param", "says"),
    [
        ("Trainer.global_batch_size = 6.4", "`Trainer.global_batch_size` is 6.4"),
        ("Trainer.global_batch_size = True", "`Trainer.global_batch_size` is True"),
        ("Trainer.microbatches = 0", "`Trainer.microbatches` is 0"),
        ("Trainer.microbatches = @many()", "`Trainer.microbatches` is @many()"),
        ("Trainer.microbatches = %loop\nloop = %loop", "`Trainer.microbatches` is %loop"),
        ("Experiment.strategy = @mesh()", "`Experiment.strategy` is @mesh()"),
    ],
)
def test_sharing_without_a_number_is_refused(param, says):
    with pytest.raises(ConfigurationError) as refused:
        sharing_of(param)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--min_workers=0"], "`--min_workers` is 0"),
        (["--min_workers=4"], "give 1 to 3"),
        (["--min_workers=1", "--max_restarts=0"], "no effect with `--max_restarts=0`"),
        (["--min_workers=3"], "of 3 workers at most 2 can share 32 examples a step evenly"),
    ],
)
def test_wrong_flags_are_refused_before_anything_starts(flags, says, capfd):
    assert main(["--workers=3", *flags, "--", *FLAGS]) == 2
    out, err = capfd.readouterr()
    assert "started" not in out
    assert re.fullmatch(r"error: .*\n", err)
    assert says in err


def test_count_tells_scripts_how_many_can_share_a_step():
    words = ["--workers=7", "--", *FLAGS, "--gin_param=Trainer.global_batch_size = 36"]
    done = python("-m", "trainers.launch.count", *words, cwd=CHECKOUT)
    assert (done.stdout, done.stderr) == ("6\n", "")


def test_count_tells_scripts_why_no_workers_can_share_a_step(capfd):
    flags = [*FLAGS, "--gin_param=Trainer.global_batch_size = 7", "--gin_param=Trainer.microbatches = 2"]
    assert count.run(parse(["--workers=6", "--", *flags])) == 2
    assert re.fullmatch(
        r"error: .* at most 0 can share 7 examples a step in 2 microbatches .*\n", capfd.readouterr().err
    )


# --- how the rest goes on ---------------------------------------------------------------------------------------------


DIES_ONCE = f"if attempt < 1: {KILL_SELF}"
LOSES_IT = "sys.exit(0 if attempt else 6)"


def test_workers_that_are_left_start_again_and_the_line_says_how_many():
    code, out, err, attempts = launched(LOSES_IT, LOSES_IT, LOSES_IT, DIES_ONCE, elastic=(4, 1), max_restarts=4)
    assert (code, err, attempts) == (0, "", 2)
    killed = "worker 3 was killed by SIGKILL (if not sent on purpose: out of memory)"
    again = "starting 2 of 4 workers (3 can't share 64 examples a step evenly) again from the last checkpoint"
    assert f"{killed}: {again} (3 of 4 restarts left)" in out.splitlines()
    assert len(pids(out)) == 4 + 2


def test_too_few_wait_and_end_with_6():
    code, out, err, attempts = launched(
        "rest(1); sys.exit(6)", KILL_SELF, elastic=(2, 2), max_restarts=2, deadline=HASTE
    )
    assert (code, attempts) == (6, 1)
    assert (
        f"1 of 2 workers can continue, but `--min_workers` is 2; waiting {HASTE} s for a SIGUSR1"
        in out.splitlines()[-1]
    )
    assert re.fullmatch(r"error: worker 1 was killed by SIGKILL .*`--min_workers` is 2\. The same command .*\n", err)


def test_launch_that_waits_starts_all_again_at_a_sigusr1():
    at = {"waiting": ("signal", signal.SIGUSR1)}
    code, out, err, attempts = launched(LOSES_IT, DIES_ONCE, elastic=(2, 2), max_restarts=2, at=at)
    assert (code, err, attempts) == (0, "", 2)
    assert "starting 2 of 2 workers again from the last checkpoint (1 of 2 restarts left)" in out


def test_launch_that_waits_is_stopped_by_a_sigterm():
    at = {"waiting": ("signal", signal.SIGTERM)}
    code, _, err, attempts = launched("sys.exit(6)", KILL_SELF, elastic=(2, 2), max_restarts=2, at=at)
    assert (code, attempts) == (75, 1)
    assert err == "error: stopped by SIGTERM. The same command resumes from the last checkpoint.\n"


def test_sigusr1_before_the_wait_delays_no_worker():
    dies = f"""
        heard = []
        signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
        os.kill(os.getppid(), signal.SIGUSR1)
        while not heard:  # passed on by the launcher, which has taken it
            time.sleep(0.005)
        {KILL_SELF}"""
    code, _, _, attempts = launched(dies, elastic=(1, 1), max_restarts=2, deadline=HASTE)
    assert (code, attempts) == (6, 1)


def test_restarts_run_out_though_workers_are_left():
    code, _, err, attempts = launched(KILL_SELF, KILL_SELF, elastic=(8, 1), max_restarts=1)
    assert (code, attempts) == (6, 2)
    assert "none of its 1 restarts is left" in err
