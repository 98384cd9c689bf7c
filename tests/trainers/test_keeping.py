"""Which checkpoints stay, and early stopping."""

import json
import math

import pytest

from core import checkpoint
from core.checkpoint import keep
from core.checkpoint.manifest import read_manifest
from core.errors import CheckpointError, ConfigurationError
from tests.commands import CONFIGS, passed, run
from tests.core.checkpoint_lab import fail, flip_bit, model
from tests.trainers.trainer_lab import HELD_OUT, Crash, idle, make, newest, train
from trainers.hooks import EarlyStopping
from trainers.options.checkpoints import chosen_checkpoint
from trainers.python_api.load import load
from trainers.settings import Settings


def with_accuracies(tmp_path, found, **settings):
    """Returns a trainer that evaluates and saves every 10 steps, and then finds these accuracies; it trains nothing."""
    often = {"evaluate_every": 10, "checkpoint_every": 10, "log_every": None, "keep_checkpoints": 1}
    often |= {"steps": 10 * len(found), "keep_best": "max accuracy"}
    trainer = idle(make(tmp_path, eval_source=HELD_OUT, **{**often, **settings}))

    def evaluate(alive):
        yield "eval", {"loss": 1.0, "accuracy": found[trainer.step // 10 - 1]}

    trainer.evaluations.evaluate = evaluate
    return trainer


def there(trainer):
    """Returns why each checkpoint was kept when it was written, by step."""
    trainer.settle()
    steps = checkpoint.steps_in(trainer.workdir.checkpoints)
    kept = [checkpoint.of_step(trainer.workdir.checkpoints, step).extra["kept"] for step in steps]
    return {step: entry["because"] for step, entry in zip(steps, kept, strict=True)}


BEST = "best by max accuracy"


def test_last_periodic_and_best_checkpoints_stay_each_with_its_reason(tmp_path):
    trainer = with_accuracies(tmp_path, [0.1, 0.4, 0.7, math.nan, 0.7, 0.6, math.inf], keep_every=20)
    train(trainer)
    assert there(trainer) == {
        20: ["last", "every 20 steps", BEST],
        30: ["last", BEST],
        40: ["last", "every 20 steps"],
        60: ["last", "every 20 steps"],
        70: ["last"],
    }
    assert newest(trainer).extra["kept"]["best"] == {"by": "max accuracy", "step": 30, "value": 0.7}
    assert trainer.state.best == ("max accuracy", 30, 0.7)


def test_a_best_never_gets_worse_through_crashes_other_intervals_and_an_unmeasured_save(tmp_path):
    found = [0.3, 0.9, 0.5, 0.6, 0.8, 0.7, 0.95, 0.2]
    crashed = with_accuracies(tmp_path, found, hooks=[Crash(30)], steps=80)
    with pytest.raises(RuntimeError):
        train(crashed)
    assert there(crashed) == {20: ["last", BEST]}
    crashed.save()  # by a signal, at a step without evaluation
    assert newest(crashed).extra["kept"]["measured"] == {}
    again = with_accuracies(tmp_path, found, evaluate_every=20, checkpoint_every=20, hooks=[Crash(60)], steps=80)
    again.state.restore(newest(crashed))
    assert again.step == 30
    with pytest.raises(RuntimeError):
        train(again)
    assert [*there(again)] == [20, 40]
    last = with_accuracies(tmp_path, found)
    last.state.restore(newest(again))
    train(last)
    assert there(last) == {70: ["last", BEST], 80: ["last"]}


def test_best_checkpoint_saved_again_keeps_its_measure(tmp_path):
    trainer, again = (with_accuracies(tmp_path, [0.5]) for _ in range(2))
    train(trainer)
    again.state.restore(newest(trainer))
    again.save()  # by a signal before the next step, or by a run that has rolled back to it
    assert newest(again).extra["kept"]["measured"]["accuracy"] == 0.5
    assert again.state.best == ("max accuracy", 10, 0.5)


def test_run_that_keeps_no_best_has_none_to_choose(tmp_path):
    train(trainer := with_accuracies(tmp_path, [0.5], keep_best=None))
    assert trainer.state.best is None
    with pytest.raises(CheckpointError, match=r"keeps no best checkpoint: .* or choose one by its step: 10\."):
        chosen_checkpoint(trainer.workdir, "best", newest(trainer))


def test_damaged_manifest_is_no_best(tmp_path):
    better = checkpoint.Better("min", "loss")
    saves = checkpoint.Saves(tmp_path, keep=checkpoint.Keep(2, best=better), warn=fail)
    for step, loss in ((1, 0.1), (2, 0.3), (3, 0.4)):
        saves.begin(model(), step=step, examples=1, config_hash="", measured={"loss": loss})
    saves.settle()
    assert checkpoint.steps_in(tmp_path) == [1, 2, 3]
    keeper = keep.Keeper(tmp_path, saves.keeper.keep)
    assert keeper.best(3) == ("min loss", 1, 0.1)
    flip_bit(tmp_path / "step-000000001" / "manifest.json")
    assert keep.Keeper(tmp_path, saves.keeper.keep).best(3) == ("min loss", 2, 0.3)
    with pytest.raises(CheckpointError, match=r"step-000000001` is damaged: `manifest.json` is not as it was written"):
        checkpoint.of_step(tmp_path, 1)
    assert read_manifest(tmp_path / "step-000000002").extra["kept"]["measured"] == {"loss": 0.3}


def test_checkpoints_ahead_of_a_run_that_went_back_are_no_best(tmp_path):
    better = checkpoint.Better("min", "loss")

    def saved(last, *found):
        saves = checkpoint.Saves(tmp_path, keep=checkpoint.Keep(last, best=better), warn=fail)
        for step, loss in found:
            saves.begin(model(), step=step, examples=1, config_hash="", measured={"loss": loss})
        saves.settle()
        return saves.keeper

    saved(3, (10, 0.3), (20, 0.4), (30, 0.1))
    flip_bit(tmp_path / "step-000000030" / "variables.index")  # so it resumes from step 20
    keeper = saved(1, (25, 0.5))
    assert checkpoint.steps_in(tmp_path) == [10, 25, 30]
    assert keeper.best(25) == ("min loss", 10, 0.3)
    assert kept_at(tmp_path, 25) == {"by": "min loss", "step": 10, "value": 0.3}


def kept_at(directory, step):
    return checkpoint.of_step(directory, step).extra["kept"]["best"]


@pytest.mark.parametrize(
    ("better", "found", "change", "ends", "best"),
    [
        ("max accuracy", [0.1, 0.5, 0.4, 0.5, 0.9], 0.0, 40, 20),  # an equal value isn't better
        ("max accuracy", [0.1, 0.5, 0.4, 0.6, 0.9], 0.0, 50, 50),
        ("max accuracy", [0.1, 0.5, 0.55, 0.58, 0.9], 0.1, 40, 40),  # the best one seen is kept all the same
        ("min accuracy", [0.9, 0.5, 0.45, 0.42, 0.1], 0.1, 40, 40),
        ("max accuracy", [0.3, math.nan, math.nan, 0.9, 0.9], 0.0, 30, 10),
        ("max accuracy", [math.nan, math.nan, 0.9], 0.0, 20, None),
    ],
)
def test_early_stopping_ends_a_run_without_improvement(better, found, change, ends, best, tmp_path):
    hook = EarlyStopping(better, every=10, patience=2, least_change=change)
    trainer = with_accuracies(tmp_path, found, hooks=[hook], keep_best=better)
    train(trainer)
    assert trainer.step == ends
    assert (trainer.state.best and trainer.state.best.step) == best
    if ends < 10 * len(found):
        assert trainer.state.ending.stopped.startswith("`accuracy` was no better than ")
        assert trainer.state.ending.stopped.endswith(" in 2 evaluations")


def test_a_run_that_was_killed_ends_where_one_that_was_not_does(tmp_path):
    found = [0.1, 0.5, 0.4, 0.3, 0.2, 0.9]

    def trainer(name, *hooks):
        stopping = EarlyStopping("max accuracy", every=10, patience=3)
        return with_accuracies(tmp_path / name, found, hooks=[stopping, *hooks])

    whole, killed, resumed = trainer("whole"), trainer("killed", Crash(40)), trainer("killed")
    train(whole)
    with pytest.raises(RuntimeError):
        train(killed)
    resumed.state.restore(newest(killed))
    assert resumed.step == 30
    train(resumed)
    assert (
        (resumed.step, resumed.state.ending.stopped)
        == (whole.step, whole.state.ending.stopped)
        == (50, resumed.state.ending.stopped)
    )
    assert there(resumed) == there(whole) == {20: ["last", BEST], 50: ["last"]}


def settings_of(**settings):
    return Settings(**{"steps": 100, "global_batch_size": 32, "evaluate_every": 10, "checkpoint_every": 10, **settings})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"keep_best": "accuracy"}, ["`Trainer.keep_best` is 'accuracy'", "'max accuracy', 'min loss'"]),
        ({"keep_best": "maximal accuracy"}, ["a direction and a metric"]),
        ({"keep_best": 3}, ["`Trainer.keep_best` is 3"]),
        ({"keep_every": 25}, ["`Trainer.keep_every` is 25", "`Trainer.checkpoint_every` = 10"]),
        ({"keep_every": 25, "checkpoint_every": None}, ["`Trainer.checkpoint_every` = None"]),
        (
            {"keep_best": "max x", "checkpoint_every": 15},
            ["`Trainer.checkpoint_every` = 15", "`Trainer.evaluate_every` = 10", "Give both the same"],
        ),
        ({"keep_best": "max x", "evaluate_every": None}, ["`Trainer.evaluate_every` = None"]),
        ({"hooks": [("max x", 10)]}, ["`EarlyStopping.figure` is 'max x' and `Trainer.keep_best` None"]),
        ({"hooks": [("max x", 10)], "keep_best": "min x"}, ["`Trainer.keep_best` 'min x'"]),
        (
            {"hooks": [("max x", 15)], "keep_best": "max x"},
            ["`EarlyStopping.every` is 15", "`Trainer.checkpoint_every` = 10"],
        ),
    ],
)
def test_intervals_that_would_keep_nothing_are_refused(settings, words):
    settings["hooks"] = [EarlyStopping(figure, every=every) for figure, every in settings.get("hooks", ())]
    with pytest.raises(ConfigurationError) as refused:
        settings_of(**settings)
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    "bad", [{"patience": 0}, {"patience": 1.5}, {"least_change": -1.0}, {"least_change": math.nan}]
)
def test_early_stopping_that_could_not_stop_is_refused(bad):
    with pytest.raises(ConfigurationError, match=rf"^`EarlyStopping\.{next(iter(bad))}` is "):
        EarlyStopping("max accuracy", every=10, **bad)


def test_best_of_an_unknown_figure_is_refused(tmp_path):
    often = {"evaluate_every": 10, "checkpoint_every": 10, "keep_best": "min loss"}
    with pytest.raises(ConfigurationError, match=r"`Trainer.keep_best` is 'min loss', but .* nothing to evaluate on"):
        make(tmp_path, **often)
    with pytest.raises(ConfigurationError, match=r"no evaluation has the metric `loss`: there are `odd/accuracy`"):
        make(tmp_path, eval_sources={"odd": HELD_OUT}, **often)
    with pytest.raises(ConfigurationError, match=r"no evaluation has the metric `acuracy`.*Did you mean `accuracy`\?"):
        make(tmp_path, eval_source=HELD_OUT, **{**often, "keep_best": "max acuracy"})


def test_fitting_intervals_are_taken():
    stopping = EarlyStopping("min a/loss", every=40)
    kept = settings_of(keep_every=40, keep_best=" min  a/loss ", checkpoint_every=20, hooks=[stopping]).keep
    assert (kept.last, kept.every, str(kept.best)) == (3, 40, "min a/loss")


FLAGS = [f"--gin_file={CONFIGS / 'digits_linear.gin'}", "--workdir=run"]
GIN = """
better = "max accuracy"
Trainer.keep_best = %better
Trainer.hooks = [@EarlyStopping()]
EarlyStopping.figure = %better
EarlyStopping.every = 5
EarlyStopping.patience = 1
EarlyStopping.least_change = 0.9
Trainer.steps = 30
Trainer.evaluate_every = 5
Trainer.checkpoint_every = 5
Trainer.keep_checkpoints = 1
"""


@pytest.mark.long
def test_command_names_the_best_and_evaluates_it(tmp_path):
    (tmp_path / "stop.gin").write_text(GIN)
    flags = [*FLAGS, "--gin_file=stop.gin"]
    done = passed(*flags, cwd=tmp_path)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["reason"].startswith("stopped at step 10: `accuracy` was no better than ")
    best = result["best"]
    assert f"best max accuracy: {best['value']:.4g} at step {best['step']}" in done.stdout
    chosen = run(*flags, "--mode=evaluate", "--checkpoint=best", cwd=tmp_path)
    assert f"step {best['step']}/{best['step']}" in chosen.stdout
    assert f"accuracy {best['value']:.4f}" in chosen.stdout
    assert load(tmp_path / "run", step="best").step == best["step"]
    none = run(*flags, "--mode=evaluate", "--checkpoint=7", cwd=tmp_path)
    assert none.returncode == 5
    assert "there is no checkpoint of step 7" in none.stderr
