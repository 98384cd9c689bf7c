"""`Trainer.compile`: its values, and the choice that "auto" measures and remembers."""

import functools
import json
import math
import signal

import pytest
import tensorflow as tf

from core.errors import ConfigurationError, PreemptedError
from core.telemetry import Telemetry
from core.testing.replicas import on_virtual_cpus
from tests.toys import Line, point_source
from tests.trainers import trainer_lab
from tests.trainers.trainer_lab import Lines, hashes, train
from trainers.gin_audit.identity import spelt_today
from trainers.loop import compile_choice
from trainers.loop.compile_choice import Choosing
from trainers.options.compile import compile_words
from trainers.performance.rehearsal import Rehearsal
from trainers.replay.repeat_steps import pass_steps
from trainers.settings import Settings
from trainers.workdir import CHOICE

make = functools.partial(trainer_lab.make, task=Line, source=point_source(64), global_batch_size=8)


class Said(Lines):
    live = False

    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def progress(self, step, figures=None):
        self.step = step


def run(trainer):
    """Trains; returns the notes."""
    said = Said()
    trainer.train(Telemetry([said]))
    return "\n".join(said.notes)


def test_words_mean_what_they_meant():
    assert [compile_words(x) for x in (True, False, "auto", "xla")] == ["xla", "off", "auto", "xla"]
    assert compile_words({"d": True, "g": "off"}) == {"d": "xla", "g": "off"}
    assert Settings(steps=1, global_batch_size=1).compile == "off"
    old = {"Trainer.compile": "True", "mine/Trainer.compile": "False", "Trainer.steps": "True"}
    today = {"Trainer.compile": "'xla'", "mine/Trainer.compile": "'off'", "Trainer.steps": "True"}
    assert spelt_today(old) == today == spelt_today(today)


@pytest.mark.parametrize("given", ["atuo", 1, None, {"net": "auto"}, {"net": 3}, ["net"]])
def test_other_words_are_refused(given):
    with pytest.raises(ConfigurationError, match=r'`Trainer\.compile`.* "off"'):
        Settings(steps=1, global_batch_size=1, compile=given)


@pytest.mark.parametrize("word", ["xla", "off"])
def test_unknown_update_is_named(word, tmp_path):
    with pytest.raises(ConfigurationError, match=r"names `nett`, but the updates of this task are `net`\..* `net`\?"):
        make(tmp_path, compile={"net": "xla", "nett": word})


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.long)])
def test_auto_measures_without_training_and_is_remembered(replicas, tmp_path, monkeypatch):
    monkeypatch.setattr(compile_choice, "MAKING_SECONDS", math.inf)

    def made(name, **settings):
        strategy = on_virtual_cpus(replicas) if replicas > 1 else None
        return make(tmp_path, name, strategy=strategy, steps=20, checkpoint_every=20, **settings)

    auto = made("auto", compile="auto")
    said = run(auto)
    kept = json.loads((auto.workdir.path / CHOICE).read_text())
    assert kept["seconds_a_step"].keys() == {"off", "xla"} | ({"net by xla"} if replicas == 1 else set())
    assert f"compile: {kept['compile']} (a step: off " in said
    plain = made("plain", compile=kept["compile"])
    train(plain)
    assert hashes(auto) == hashes(plain)
    again = made("auto", compile="auto")
    again.warm_up(next(again.input.chunks_from(0)))
    assert again.train_step.compiled == auto.train_step.compiled


def bytes_of(trainer):
    return {path: variable.numpy().tobytes() for path, variable in trainer.state.variables.items()}


def test_replayed_steps_are_taken_by_the_program_of_the_run(tmp_path):
    auto, plain = make(tmp_path, "auto", compile="auto"), make(tmp_path, "plain", compile="xla")
    (auto.workdir.path / CHOICE).write_text(json.dumps({"compile": "xla", "measured_on": {"processor": "Z80"}}))
    for trainer in (auto, plain):
        pass_steps(trainer, 7)
        pass_steps(trainer, 10)
        assert trainer.train_step.compiled is True
        assert trainer.chunk.experimental_get_tracing_count() == 1
    assert bytes_of(auto) == bytes_of(plain)


def test_signal_while_programs_are_measured_leaves_without_a_step(tmp_path):
    trainer = make(tmp_path, compile="auto")
    before = bytes_of(trainer)
    trainer._preemption.signal = signal.SIGTERM  # in the loop it is a wish, because it can save time
    with pytest.raises(PreemptedError, match="stopped by SIGTERM before the first step: nothing has changed"):
        trainer.warm_up(next(trainer.input.chunks_from(0)))
    assert bytes_of(trainer) == before
    assert not (trainer.workdir.path / CHOICE).exists()


def choose(trainer, programs=None, **more):
    """Chooses with the test's programs and clock; returns the chosen values, and the notes."""
    notes = []
    made = programs or trainer.programs._traced
    own = Choosing(trainer.programs.context, made, note=notes.append, alive=lambda: None, **more)
    own.choose(next(trainer.input.chunks_from(0)))
    return json.loads((trainer.workdir.path / CHOICE).read_text())["compile"], "\n".join(notes)


class Clock:
    """A clock that programs advance, each by its seconds per step: without XLA first."""

    def __init__(self, *seconds, making=0.0):
        self.now, self._seconds, self._making = 0.0, iter(seconds), making

    def __call__(self):
        return self.now

    def program(self):
        seconds = next(self._seconds)
        self.now += self._making

        def program(stacked, place):
            _, begin, end = place.numpy()
            self.now += seconds * (end - begin)

        return program


@pytest.mark.parametrize(
    ("off", "whole", "alone", "chosen"),
    [(1.0, 0.5, 0.7, "xla"), (1.0, 0.98, 2.0, "off"), (1.0, 80.0, 2.0, "off"), (1.0, 0.9, 0.6, {"net": "xla"})],
)
def test_fastest_program_is_chosen_and_xla_has_to_pay(off, whole, alone, chosen, tmp_path):
    clock = Clock(off, whole, alone)
    words, said = choose(make(tmp_path, compile="auto"), clock.program, clock=clock)
    assert words == chosen
    assert "off 1e+03 ms" in said


def test_programs_are_made_only_while_there_is_time(tmp_path):
    clock = Clock(1.0, 0.9, 0.6, making=14.0)
    trainer = make(tmp_path, compile="auto")
    words, _ = choose(trainer, clock.program, clock=clock)
    assert words == "xla"
    kept = json.loads((trainer.state.workdir.path / "compile.json").read_text())
    assert kept["refused"] == {"net by xla": "programs take too long to make"}


def test_program_without_room_is_out(tmp_path):
    trainer = make(tmp_path, compile="auto")

    def program():
        if trainer.train_step.compiled:
            raise tf.errors.ResourceExhaustedError(None, None, "Out of memory while trying to allocate 3.64TiB.")
        return lambda stacked, place: None

    words, said = choose(trainer, program)
    assert words == "off"
    assert "compile: xla is out: there is no room for its program" in said


def test_rehearsal_times_the_choice_of_auto(tmp_path):
    clock = Clock(1.0, 0.9, 0.6)
    choose(make(tmp_path, compile="auto"), clock.program, clock=clock)
    trainer = make(tmp_path, compile="auto")
    assert Rehearsal(trainer).seconds_a_step > 0.0
    assert trainer.train_step.compiled == ["net"]


def test_step_that_isnt_finite_while_measured_chooses_nothing(tmp_path):
    trainer = make(tmp_path, compile="auto")

    def program():
        return lambda stacked, place: trainer.progress.bad_step.assign(3)

    words, said = choose(trainer, program)
    assert words == "off"
    assert "a step wasn't finite" in said
    assert int(trainer.progress.bad_step) == -1


DAMAGES = [
    (lambda kept: kept["measured_on"].update(processor="Z80"), "measured elsewhere (processor was Z80, and is "),
    (lambda kept: kept["measured_on"].update(replicas=4), "replicas was 4, and is 1"),
    (lambda kept: kept["measured_on"].update(configuration="f00"), "configuration was f00, and is "),
    (lambda kept: kept.update(compile={"nett": "xla"}), "measured again"),
    (lambda kept: kept.clear(), "can't be read: measured again"),
    (lambda kept: kept.update(compile=3), "can't be read: measured again"),
    (lambda kept: kept.update(compile="auto"), "can't be read: measured again"),
    (lambda kept: kept.update(measured_on=[]), "can't be read: measured again"),
]


def test_choice_measured_elsewhere_is_measured_again(tmp_path):
    trainer, clock = make(tmp_path, compile="auto"), Clock(1.0, 0.5, 0.7)
    assert choose(trainer, clock.program, clock=clock)[0] == "xla"
    clock = Clock(0.1)  # the one that is remembered
    assert "as `compile.json` remembers" in choose(trainer, clock.program, clock=clock)[1]
    file = trainer.workdir.path / CHOICE
    text = file.read_text()
    for damage, says in DAMAGES:
        damage(kept := json.loads(text))
        file.write_text(json.dumps(kept))
        clock = Clock(0.1, 0.5, 0.7)
        words, said = choose(trainer, clock.program, clock=clock)
        assert words == "off"
        assert says in said
