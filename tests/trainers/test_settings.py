"""Settings of a training: refusals, the chosen chunk, and their place in gin and its audit."""

import dataclasses
import math
import re

import gin
import pytest

from core.errors import ConfigurationError, shown
from core.optimizers import sgd
from trainers.gin_audit import registry
from trainers.hooks import Hook
from trainers.settings import MAX_CHUNK_BYTES, Settings

COUNTS = [f.name for f in dataclasses.fields(Settings) if f.type in (int, int | None)]


class Idle(Hook):
    def __call__(self, run):
        pass


def make(**settings):
    return Settings(**{"steps": 100, "global_batch_size": 32, **settings})


def test_counts_are_all_there():
    assert {"steps", "global_batch_size", "microbatches", "chunk_steps", "log_every", "keep_checkpoints"} < set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize(
    ("value", "bound"),
    [*((x, "least 1.") for x in (0, -3)), *((x, "most 2147483647 ") for x in (2**31, 2**63, 10**30))],
)
def test_counts_out_of_range_are_refused(name, value, bound):
    with pytest.raises(ConfigurationError, match=re.escape(f"`Trainer.{name}` is {value}; it must be at {bound}")):
        make(**{name: value})


@pytest.mark.parametrize("deadline", [None, 60, 0.5, 1e9])
def test_deadline_may_be_any_time(deadline):
    assert make(section_deadline=deadline).section_deadline == deadline


NO_TIME = [math.nan, math.inf, -math.inf, 0, 0.0, -3.5, "60", True, [60.0]]
LOCAL = {"local_steps": 20}
SPIKE = {"on_spike": "skip"}
NO_SKIP = "`Trainer.max_skips` has no effect unless a policy is 'skip'"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        *(
            ({"section_deadline": x}, f"`Trainer.section_deadline` is {shown(x)}; it is a time in seconds: give a numb")
            for x in NO_TIME
        ),
        *(
            ({"hooks": [x]}, "`Trainer.hooks` holds ... whose `every` is None or at least 1.")
            for x in (print, Idle, Idle(0), Idle(-5))
        ),
        ({"chunk_steps": 10, "log_every": 25}, "`Trainer.log_every` is 25...`Trainer.chunk_steps` = 10...Use 20"),
        (
            {"chunk_steps": 10, "hooks": [Idle(5), Idle(10), Idle()]},
            "`Idle.every` is 5, which isn't a mu...Use 10",
        ),
        ({**LOCAL, "steps": 90}, "`Trainer.steps` is 90, ...`Trainer.local_steps` = 20; ... Use 80."),
        ({**LOCAL, "log_every": 50}, "`Trainer.log_every` is 50, ... Use 40."),
        ({**LOCAL, "evaluate_every": 30}, "`Trainer.evaluate_every` is 30, ... Use 40."),
        ({**LOCAL, "checkpoint_every": 30}, "`Trainer.checkpoint_every` is 30, ... Use 40."),
        ({**LOCAL, "check_replicas_every": 30}, "`Trainer.check_replicas_every` is 30, ... Use 40."),
        ({**LOCAL, "hooks": [Idle(5)]}, "`Idle.every` is 5, ... Use 20."),
        ({**LOCAL, "chunk_steps": 10}, "`Trainer.chunk_steps` is 10, ... Use 20."),
        (
            {**LOCAL, "reduce_gradients_in": "bfloat16"},
            "`Trainer.reduce_gradients_in` is 'bfloat16',... leave it out.",
        ),
        ({**LOCAL, "outer": sgd}, "`Trainer.outer` is ...; give an optimizer, made by a call: `@outer/sgd()`, or None"),
        ({"outer": sgd(0.7)}, "`Trainer.outer` has no effect without `Trainer.local_steps`"),
        ({"on_nonfinite": "ignore"}, "`Trainer.on_nonfinite` is 'ignore'; give one of 'raise', 'skip', 'rollback'."),
        ({"on_nonfinite": None}, "`Trainer.on_nonfinite` is None; give one of"),
        ({"on_spike": "raise"}, "`Trainer.on_spike` is 'raise'; give one of 'skip', 'rollback'."),
        ({"max_skips": 2}, NO_SKIP),
        ({"max_skips": 2, "on_nonfinite": "rollback"}, NO_SKIP),
        ({**SPIKE, "max_rollbacks": 2}, "`Trainer.max_rollbacks` has no effect unless a policy is 'rollback'"),
        *(
            ({"checkpoint_every_minutes": x}, f"`Trainer.checkpoint_every_minutes` is {shown(x)}; give a number of m")
            for x in (0, -1.0, math.inf, math.nan, True, "15")
        ),
        ({"spike_factor": 4.0}, "`Trainer.spike_factor` has no effect without `Trainer.on_spike`"),
        *(
            ({**SPIKE, "spike_factor": x}, f"`Trainer.spike_factor` is {x}; a gradient of this many times")
            for x in (1.0, math.nan, True)
        ),
    ],
)
def test_wrong_settings_are_refused(settings, says):
    pattern = ".*".join(re.escape(part) for part in says.split("..."))
    with pytest.raises(ConfigurationError, match=f"(?s)^{pattern}"):
        make(**settings)


@pytest.mark.parametrize(
    ("intervals", "length"), [((100, 250), 50), ((12, 30), 6), ((100, 7), 1), ((None, None), 50), ((1000, None), 50)]
)
def test_chunk_is_the_longest_that_divides_all_intervals(intervals, length):
    log_every, every = intervals
    settings = make(log_every=log_every, evaluate_every=None, checkpoint_every=None, hooks=[Idle(every), Idle(300)])
    assert settings.steps_per_chunk(1) == math.gcd(length, 300)
    without = make(log_every=log_every, evaluate_every=every, checkpoint_every=None)
    assert without.steps_per_chunk(1) == length


def test_chunk_fits_into_memory_unless_it_is_given():
    none = {"log_every": None, "evaluate_every": None, "checkpoint_every": None}
    assert make(**none).steps_per_chunk(MAX_CHUNK_BYTES // 20) == 10
    assert make(**none).steps_per_chunk(2 * MAX_CHUNK_BYTES) == 1
    assert make(**none, chunk_steps=30).steps_per_chunk(2 * MAX_CHUNK_BYTES) == 30


@pytest.mark.parametrize(("local_steps", "length"), [(20, 40), (25, 50), (50, 50), (100, 100)])
def test_chunk_holds_whole_rounds(local_steps, length):
    without = {"log_every": None, "evaluate_every": None, "checkpoint_every": None}
    assert make(steps=1000, local_steps=local_steps, **without).steps_per_chunk(1) == length
    assert make(steps=1000, local_steps=local_steps, **without).steps_per_chunk(MAX_CHUNK_BYTES) == local_steps


def test_settings_stay_as_they_were_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().steps = 0
    with pytest.raises(ConfigurationError, match=r"`Trainer\.steps` is 0"):
        dataclasses.replace(make(), steps=0)


def test_gin_and_its_audit_know_all_settings_as_the_trainers():
    selector = registry.lookup(Settings)
    assert registry.short(selector) == "Trainer"
    known = registry.signature(selector).parameters
    assert list(known) == [field.name for field in dataclasses.fields(Settings)]
    assert {name: parameter.hint for name, parameter in known.items()} == {
        field.name: field.type for field in dataclasses.fields(Settings)
    }
    assert {name for name, parameter in known.items() if parameter.required} == {"steps", "global_batch_size"}
    with gin.unlock_config():
        gin.bind_parameter("Trainer.steps", 7)
        gin.bind_parameter("Trainer.global_batch_size", 8)
    assert (Settings().steps, Settings(global_batch_size=4).global_batch_size) == (7, 4)
