"""Runs that train on a stream: they resume exactly, in any chunks, and another stream is refused."""

import numpy as np
import pytest
import tensorflow as tf
from trainer_lab import Crash, Untrained, hashes, newest, train
from trainer_lab import make as make_trainer

from core.data import Stream, digits
from core.distribution import mirrored
from core.errors import ConfigurationError, DataError
from core.optimizers import sgd
from core.task import Loss, Task, Update
from trainers.experiment import Experiment

PLAIN = digits("train")
ARRAYS = {key: x.numpy() for key, x in PLAIN.gather(tf.range(len(PLAIN), dtype=tf.int64)).items()}


def shuffled_digits(seed, epoch, count=300):
    """Yields so few examples that a run reaches the fifth epoch."""
    for i in np.random.RandomState([seed, epoch]).permutation(count):
        yield {key: x[i] for key, x in ARRAYS.items()}


def as_dataset(seed, epoch):
    some = {key: x[:300] for key, x in ARRAYS.items()}
    return tf.data.Dataset.from_tensor_slices(some).shuffle(300, seed=1000 * seed + epoch)


class Order(Task):
    """Keeps a mean of images that depends on their order in the steps."""

    def __init__(self, *, rng):
        super().__init__()
        self.w = tf.Variable(tf.zeros([8, 8, 1]), name="w")

    def phases(self):
        return [Update("fit", loss=self.loss, trains=self, optimizer=sgd(0.3))]

    def loss(self, batch, rng):
        return Loss(tf.reduce_sum(tf.square(self.w - batch["image"]), [1, 2, 3]))


def make(*arguments, **settings):
    return make_trainer(*arguments, task=Order, **settings)


def read(trainer):
    """Runs the loop on steps that train nothing, so that nothing is traced."""
    trainer.programs = Untrained(trainer.experiment)
    train(trainer)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    trainer = make(tmp_path_factory.mktemp("whole"), source=Stream(shuffled_digits))
    train(trainer)
    return trainer


@pytest.fixture(scope="module")
def step_20(tmp_path_factory):
    """Returns the checkpoint of a run that crashed ten steps later."""
    settings = {"checkpoint_every": 20, "hooks": [Crash(30)], "source": Stream(shuffled_digits)}
    trainer = make(tmp_path_factory.mktemp("crashed"), **settings)
    with pytest.raises(RuntimeError, match="crash"):
        train(trainer)
    return newest(trainer)


@pytest.mark.long
def test_resumed_run_ends_in_the_same_bits_with_other_chunks(whole, step_20, tmp_path):
    resumed = make(tmp_path, source=Stream(shuffled_digits), chunk_steps=8, log_every=40)
    resumed.state.restore(step_20)
    train(resumed)
    assert hashes(resumed) == hashes(whole)
    assert newest(resumed).extra["stream"] == newest(whole).extra["stream"]


def test_resumed_run_on_a_shuffled_dataset_reads_the_same_examples(tmp_path):
    whole = make(tmp_path, "whole", source=Stream(as_dataset, shuffle=50), checkpoint_every=20, chunk_steps=5)
    read(whole)
    resumed = make(tmp_path, "resumed", source=Stream(as_dataset, shuffle=50), chunk_steps=8, log_every=40)
    resumed.state.restore(newest(whole, up_to=20))
    assert resumed.step == 20
    read(resumed)
    assert newest(resumed).extra["stream"] == newest(whole).extra["stream"]  # marks of all that were read


@pytest.mark.long
def test_replicas_microbatches_and_chunks_do_not_change_the_examples_of_a_step(tmp_path):
    stream = Stream(shuffled_digits)
    plain = make(tmp_path, source=stream, chunk_steps=1)
    expected = {step: plain.input.batch_of(step)["label"].numpy().reshape(-1).tolist() for step in (0, 7, 13)}
    for replicas, microbatches, chunk_steps in [(2, 1, 4), (4, 2, 5), (1, 2, 10)]:
        strategy = mirrored(replicas=replicas) if replicas > 1 else None
        settings = {"chunk_steps": chunk_steps, "microbatches": microbatches}
        trainer = make(tmp_path, source=stream, strategy=strategy, **settings)
        for step, labels in expected.items():
            chunk = next(trainer.input.chunks_from(step))["label"]
            parts = [part[step % chunk_steps] for part in trainer.input.strategy.experimental_local_results(chunk)]
            assert tf.reshape(tf.concat(parts, axis=1), [-1]).numpy().tolist() == labels
            assert trainer.input.batch_of(step)["label"].shape == (microbatches, 32 // microbatches)
    assert plain.input.examples_of(7).tolist() == [list(range(7 * 32, 8 * 32))]


def test_run_resumes_on_two_replicas_as_on_one_with_another_batch_size(step_20, tmp_path):
    kept, seen = [], 20 * 32 + 25 * 16
    for replicas in (1, 2):
        settings = {"strategy": mirrored(replicas=replicas)} if replicas > 1 else {}
        settings |= {"chunk_steps": 5, "global_batch_size": 16, "steps": 45, "log_every": None}
        trainer = make(tmp_path, str(replicas), source=Stream(shuffled_digits), **settings)
        trainer.state.restore(step_20)
        assert trainer.input.examples_before(20) == 20 * 32
        assert trainer.input.examples_of(20)[0, 0] == 20 * 32
        read(trainer)
        assert newest(trainer).examples == seen
        kept.append(newest(trainer).extra["stream"])
    assert kept[0] == kept[1]
    assert len(kept[0]["marks"]) == seen.bit_length()


def otherwise(count):
    """Returns the same stream up to `count` examples of the first epoch, and then another."""

    def stream(seed, epoch):
        for i, example in enumerate(shuffled_digits(seed, epoch)):
            yield example if i < count and not epoch else {**example, "label": np.int64(0)}

    return stream


@pytest.mark.parametrize(("count", "where"), [(0, "0 to 0"), (200, "128 to 255"), (300, "256 to 511")])
def test_stream_that_does_not_repeat_is_refused(step_20, tmp_path, count, where):
    trainer = make(tmp_path, source=Stream(otherwise(count)), steps=60)
    trainer.state.restore(step_20)
    with pytest.raises(DataError, match=f"doesn't repeat: of its examples number {where}, .*replay=False") as error:
        train(trainer)
    assert error.value.exit_code == 4


def of_grain(seed, epoch):
    import grain

    examples = [{key: x[i] for key, x in ARRAYS.items()} for i in range(300)]
    return grain.MapDataset.source(examples).shuffle(seed=1000 * seed + epoch).to_iter_dataset()


def of_hugging_face(seed, epoch):
    from datasets import Dataset

    numbers = Dataset.from_dict({"number": range(300)}).to_iterable_dataset(num_shards=4)
    examples = numbers.map(lambda row: {key: x[row["number"]] for key, x in ARRAYS.items()}, remove_columns="number")
    return examples.shuffle(1000 * seed + epoch, buffer_size=1)


def with_buffer(seed, epoch):
    """Has a buffer, whose examples aren't part of the state."""
    return of_hugging_face(seed, epoch).shuffle(seed, buffer_size=50)


@pytest.mark.parametrize(
    ("stream", "is_read_again"), [(of_grain, False), (of_hugging_face, False), (with_buffer, True)]
)
def test_stream_whose_iterator_keeps_a_state_resumes_from_it(stream, is_read_again, tmp_path, capsys):
    whole = make(tmp_path, "whole", source=Stream(stream), checkpoint_every=35, chunk_steps=5)
    read(whole)
    made = []

    def again(seed, epoch):
        made.append(epoch)
        return stream(seed, epoch)

    resumed = make(tmp_path, "resumed", source=Stream(again), checkpoint_every=35, chunk_steps=5)
    resumed.state.restore(newest(whole, up_to=35))
    made.clear()
    read(resumed)
    assert newest(resumed).extra["stream"]["hash"] == newest(whole).extra["stream"]["hash"]
    assert (0 in made) == is_read_again  # else it begins in a later epoch
    assert ("doesn't continue from its state, and is read again" in capsys.readouterr().out) == is_read_again


def test_stream_that_is_not_replayed_resumes_with_a_new_epoch(step_20, tmp_path, capsys):
    made = []

    def live(seed, epoch):
        made.append(epoch)
        return otherwise(7 * len(made))(seed, epoch)

    trainer = make(tmp_path, "run", source=Stream(live, replay=False), log_every=None)
    trainer.state.restore(step_20)
    began = step_20.extra["stream"]["epoch"] + 1
    assert f"isn't replayed: after 640 examples the run continues with epoch {began}." in capsys.readouterr().out
    made.clear()
    read(trainer)
    assert made[0] == began
    assert newest(trainer).examples == 1280
    kept = newest(trainer).extra["stream"]
    assert (kept["first_epoch"], kept["began_at"]) == (began, 640)
    # The rest does repeat: from there on it can be replayed, without the earlier part.
    trainer = make(tmp_path, "run", source=Stream(live), steps=60, log_every=None)
    trainer.state.restore(newest(trainer))
    made.clear()
    read(trainer)
    assert made[0] == began
    assert newest(trainer).extra["stream"]["marks"][:10] == kept["marks"][:10]


def test_error_of_a_users_function_is_raised_as_it_is(tmp_path):
    def breaks(seed, epoch):
        yield from shuffled_digits(seed, epoch)
        raise LookupError("the disk of the user")

    with pytest.raises(LookupError, match="the disk of the user") as error:
        read(make(tmp_path, source=Stream(breaks), log_every=None))
    assert "breaks" in [entry.name for entry in error.traceback]


def test_synthetic_input_reads_the_first_chunk_alone(tmp_path):
    made = []

    def counted(seed, epoch):
        made.append(epoch)
        return shuffled_digits(seed, epoch)

    trainer = make(tmp_path, source=Stream(counted))
    trainer.input._synthetic = True
    chunks = trainer.input.chunks_from(0)
    first = next(chunks)["label"].numpy()
    for _ in range(3):
        np.testing.assert_array_equal(next(chunks)["label"], first)
    np.testing.assert_array_equal(trainer.input.batch_of(23)["label"], first[3])


def test_example_that_is_not_finite_is_named_by_its_place_in_the_stream(tmp_path):
    def spoiled(seed, epoch):
        for i, example in enumerate(shuffled_digits(seed, epoch)):
            bad = epoch == 0 and i == 77
            yield {**example, "image": example["image"] * (np.nan if bad else 1.0)}

    settings = {"steps": 10, "log_every": 10}
    with pytest.raises(DataError, match=r"step 2 is not finite.*example 77 of source `spoiled` .* in `image`"):
        train(make(tmp_path, source=Stream(spoiled), **settings))


def test_skipping_examples_shows_progress_and_life(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("core.data.stream_pass._SAY_SECONDS", 0.0)
    trainer = make(tmp_path, source=Stream(shuffled_digits))
    alive = []
    next(trainer.input.chunks_from(30, alive=lambda: alive.append(True)))
    assert capsys.readouterr().out.splitlines()[0] == "passing over examples of `shuffled_digits`: 320 of 960"
    assert len(alive) == 3


def test_stream_is_refused_for_evaluation(tmp_path):
    stream = Stream(shuffled_digits)
    with pytest.raises(ConfigurationError, match=r"`Experiment.eval_source` is the stream `shuffled_digits`"):
        Experiment(task=Order, train_source=PLAIN, eval_source=stream)
    with pytest.raises(ConfigurationError, match="which has no single examples: bind"):
        assert Experiment(task=Order, train_source=stream).shown_source
    assert Experiment(task=Order, train_source=stream, eval_source=PLAIN).shown_source is PLAIN
