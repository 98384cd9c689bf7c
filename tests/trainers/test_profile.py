"""Profiles of steps, requested with a setting or a signal."""

import contextlib
import re
import types

import pytest
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace
from test_preemption import train_and_send

from core.errors import ConfigurationError
from core.telemetry import Telemetry
from tests.commands import passed, run
from tests.core.telemetry.test_full_disk import Notes, most
from trainers.loop import profiler


def profiled(workdir):
    """Returns the steps at which chunks began, by profile, in order."""
    found = []
    for path in sorted((workdir / "events" / "plugins" / "profile").glob("*/*.xplane.pb")):
        space = XSpace.FromString(path.read_bytes())
        (plane,) = [plane for plane in space.planes if plane.name == "/host:CPU"]
        names = {key: stat.name for key, stat in plane.stat_metadata.items()}
        chunks = {key for key, event in plane.event_metadata.items() if event.name == "chunk"}
        events = [event for line in plane.lines for event in line.events if event.metadata_id in chunks]
        stats = [stat for event in events for stat in event.stats if names[stat.metadata_id] == "step_num"]
        found.append(sorted({stat.int64_value or stat.uint64_value for stat in stats}))
    return found


def made(folder, steps, wishes=()):
    """Returns a profiler with requests at these turns."""
    return profiler.Profiler(folder, steps, total=40, chunk_steps=10, take_wish=iter(wishes).__next__)


def test_signal_profiles_the_next_chunk_and_the_run_continues(tmp_path):
    flags = train_and_send(tmp_path, "SIGUSR2", "SIGUSR2")
    done = run(*flags, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"profiled steps (\d+) to (\d+)", done.stdout) == [("20", "30")]
    assert profiled(tmp_path / "runs" / "mine") == [[20]]


@pytest.mark.long
def test_setting_profiles_the_chunks_from_one_step_to_another(tmp_path):
    (tmp_path / "xprof.py").touch()  # stands for the package, which displays profiles and isn't needed to make one
    flags = train_and_send(tmp_path)
    passed(*flags, "--gin_param=Trainer.profile = (12, 27)", cwd=tmp_path)
    assert profiled(tmp_path / "runs" / "mine") == [[10, 20]]


@pytest.mark.parametrize("at_the_end", [False, True])
def test_profile_without_room_is_reported_and_the_run_continues(tmp_path, monkeypatch, at_the_end):
    monkeypatch.setattr(profiler.importlib.util, "find_spec", lambda name: name)
    screen, wishes = Notes(), [False, True, False] if at_the_end else [False, False, True, False]
    profiling, run = made(tmp_path, (0, 10), wishes), types.SimpleNamespace(step=0, telemetry=Telemetry([screen]))
    profiling.begin(run)
    with most(100):
        if at_the_end:
            profiling.close()
        else:
            run.step = 10
            profiling.after_chunk(run)
    (note,) = screen.notes
    assert note.startswith("Warning: the profile from step 0 on could not be kept: ")
    assert "xplane.pb; File too large" in note
    for run.step in (20, 30):
        profiling.after_chunk(run)
    assert screen.notes[1].startswith("profiled steps 20 to 30")


@pytest.mark.parametrize(
    ("steps", "at"), [((12, 17), [10]), ((10, 20), [10]), ((19, 21), [10, 20]), ((20, 100), [20, 30]), ((0, 1), [0])]
)
def test_chunks_with_any_of_the_steps_are_profiled_and_no_others(tmp_path, monkeypatch, steps, at):
    monkeypatch.setattr(profiler.importlib.util, "find_spec", lambda name: name)
    for name in ("start", "stop"):
        monkeypatch.setattr(profiler.tf.profiler.experimental, name, lambda *_: None)
    found = []

    def mark(name, *, step_num, _r):
        found.append(step_num)
        return contextlib.nullcontext()

    monkeypatch.setattr(profiler.tf.profiler.experimental, "Trace", mark)
    profiling, run = made(tmp_path, steps, [False] * 5), types.SimpleNamespace(step=0, telemetry=Telemetry([]))
    profiling.begin(run)
    while run.step < 40:
        profiling.before_chunk(run)
        run.step += 10
        profiling.after_chunk(run)
    profiling.close()
    assert found == at


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        *((steps, r"^`Trainer.profile` is .*as in \(100, 150\)") for steps in ((3, 3), [1], (-1, 5))),
        ((40, 50), r"^`Trainer.profile` is \(40, 50\), but the run has 40 steps"),
    ],
)
def test_wrong_ranges_of_steps_are_refused(tmp_path, monkeypatch, steps, says):
    monkeypatch.setattr(profiler.importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ConfigurationError, match=says):
        made(tmp_path, steps)


def test_profile_without_xprof_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(profiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"`xprof`.*isn't installed: `pip install -e '.\[profile\]'`"):
        made(tmp_path, (10, 20))
