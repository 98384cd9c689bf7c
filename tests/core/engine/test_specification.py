"""The engine matches `plain_step`: random small tasks, on random placements."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from engine_lab import assert_as_plain

from core import layers
from core.module import Module
from core.optimizers import sgd
from core.task import EVERY_REPLICA, ONE_DEVICE, Compute, Loss, Placement, Task, Update, when_batch_at_least
from core.task.statistics import Statistics

ROWS, SIZE, STEPS = 24, 3, 4
WORDS = 1100  # so many that the gradients of a table are sent as slices


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The parts of a task, and where it runs."""

    replicas: int
    microbatches: int
    placements: dict[str, Placement]  # by phase
    one_device: tuple[str, ...]
    weights: str  # none, ragged, zero
    own_microbatches: int | None  # of the update `d`
    every: int  # of the update `g`
    through: bool  # whether `g` learns through `sample`, or makes samples of its own
    shared: bool  # whether `d` reads them too, so that they are made in every step
    words: bool
    synchronised: bool
    history: bool
    head: bool  # whether a third network learns, every other step, from what `d` hands on


def draw(seed):
    """Draws one example: replica counts take turns, and the combination is allowed."""
    random = np.random.RandomState(seed)
    replicas = (2, 3, 1)[seed % 3]
    names = ["sample", "d", "g", "head"]
    chosen = random.choice([EVERY_REPLICA, ONE_DEVICE, when_batch_at_least(ROWS), when_batch_at_least(ROWS + 1)], 4)
    placements = dict(zip(names, chosen, strict=True))
    yes = {name: bool(random.randint(2)) for name in ("through", "shared", "words", "synchronised", "history", "head")}
    # Normalising over two to four rows leaves numbers of rounding size.
    microbatches = int(random.choice([1, 2] if yes["synchronised"] else [1, 2, 4]))
    once = {name for name, place in placements.items() if not place.on_every_replica(ROWS)}
    return Drawn(
        replicas=replicas,
        microbatches=microbatches,
        placements=placements,
        one_device=("g",) if "sample" in once and (yes["through"] or "g" in once) else (),
        weights=str(random.choice(["none", "ragged", "zero"], p=[0.4, 0.5, 0.1])),
        own_microbatches=random.choice([None, *(n for n in (1, 2, 4) if n <= microbatches)]),
        every=int(random.randint(1, 4)),
        **yes,
    )


def as_values(drawn):
    """Returns each drawn value under a distinct name."""
    fields = {field.name: getattr(drawn, field.name) for field in dataclasses.fields(drawn)}
    return fields | {f"{phase}'s place": place for phase, place in fields.pop("placements").items()}


# Few examples that together have every value: among the cheapest in which `d` learns on two replicas, normalised over
# both or with a history, joining microbatches, and on three, by slices. With the long ones they have every two values
# that any of 120 examples has together, where placements are told apart by where they put the batch: the cheapest few
# of 12,000.
SHORT = [930, 1038, 1793, 1912, 3273]
LONG = [522, 2855, 2909, 3629, 3651, 4598, 5576, 5818, 7327, 7448, 9745]


def resolved(drawn):
    """Returns the same with placements as the planner reads them: by whether they are on every replica."""
    every = {name: place.on_every_replica(ROWS) for name, place in drawn.placements.items()}
    return dataclasses.replace(drawn, placements=every)


def together(examples, number):
    """Returns the combinations of so many values that the examples cover."""
    values = ([(key, str(x)) for key, x in as_values(example).items()] for example in examples)
    return {combined for each in values for combined in itertools.combinations(each, number)}


class Remembered(Module):
    """Holds the rows of the previous step."""

    def __init__(self):
        super().__init__()
        self.rows = tf.Variable(tf.zeros([ROWS, SIZE]), trainable=False, name="rows")


class Judge(Module):
    """A network with the drawn features."""

    def __init__(self, drawn, *, rng):
        super().__init__()
        self.first = layers.Linear(SIZE, 4, rng=rng.fold("first"))
        self.dropout = layers.Dropout(0.2)
        self.norm = layers.BatchNorm(4, sync=True, decay=0.8) if drawn.synchronised else None
        self.table = layers.Embedding(WORDS, 4, rng=rng.fold("table")) if drawn.words else None
        self.last = layers.Linear(4, 1, rng=rng.fold("last"))

    def __call__(self, x, words, rng, statistics):
        x = self.first(x)
        if self.table is not None:
            x += tf.reduce_mean(self.table(words), 1)
        if self.norm is not None:
            x = self.norm(x, statistics=statistics)
        return self.last(self.dropout(tf.tanh(x), rng))[:, 0]


class Random(Task):
    """A generator, a discriminator and a head, as drawn."""

    drawn: Drawn

    def __init__(self, *, rng):
        super().__init__()
        self.g, self.d = layers.Linear(2, SIZE, rng=rng.fold("g")), Judge(self.drawn, rng=rng.fold("d"))
        self.head, self.history = layers.Linear(SIZE, 1, rng=rng.fold("head")), Remembered()
        self.one_device = self.drawn.one_device
        self.frozen = () if self.drawn.head else ("head",)

    def phases(self):
        drawn, rule = self.drawn, sgd(0.1, momentum=0.5)
        sample = Compute("sample", self.sample, every=1 if drawn.shared else drawn.every)
        recall = Compute("recall", self.recall, state=self.history)
        through = "sample" if drawn.through else None
        g = Update("g", loss=self.g_loss, trains=self.g, optimizer=rule, every=drawn.every, through=through)
        d = Update(
            "d",
            loss=self.d_loss,
            trains=self.d,
            optimizer=rule,
            mixes_rows=drawn.synchronised,
            microbatches=drawn.own_microbatches,
        )
        head = Update("head", loss=self.head_loss, trains=self.head, optimizer=rule, every=2)
        chosen = [*([recall] if drawn.history else []), sample, g, d, *([head] if drawn.head else [])]
        places = drawn.placements
        return [dataclasses.replace(p, placement=places[p.name]) if p.name in places else p for p in chosen]

    def recall(self, batch, rng):
        order = tf.argsort(rng.rows.uniform(ROWS))
        return {"before": tf.gather(self.history.rows, order)}, {self.history.rows.ref(): rng.progress * batch["x"]}

    def sample(self, batch, rng):
        made = tf.tanh(self.g(rng.rows.normal(batch["x"].shape[0], 2)))
        return {"fake": made / (1.0 + tf.cast(rng.step, tf.float32))}

    def g_loss(self, batch, rng):
        made = batch["fake"] if self.drawn.through else self.sample(batch, rng.fold("own"))["fake"]
        gap = tf.reduce_sum(tf.square(made - 0.5 * batch["x"]), 1)
        return Loss(gap, self.weight(batch), metrics={"gap": tf.abs(gap)})

    def d_loss(self, batch, rng):
        statistics = Statistics()
        x = batch["x"] + (0.5 - rng.progress) * rng.fold("noise").rows.normal(*batch["x"].shape)
        x += batch["fake"] if self.drawn.shared else 0.0
        x += batch["before"] if self.drawn.history else 0.0
        error = self.d(x, batch["words"], rng.fold("dropout"), statistics) - batch["y"]
        return Loss(tf.square(error), self.weight(batch), outputs={"error": error}, statistics=statistics)

    def head_loss(self, batch, rng):
        return Loss(tf.square(self.head(batch["x"])[:, 0] - batch["error"]))

    def weight(self, batch):
        return None if self.drawn.weights == "none" else batch["weight"]


def data(drawn, seed):
    random = np.random.RandomState(seed)
    weight = random.choice([0.0, 0.5, 1.0, 3.0], ROWS) if drawn.weights == "ragged" else np.zeros(ROWS)
    return {
        "x": random.randn(ROWS, SIZE).astype("float32"),
        "y": random.randn(ROWS).astype("float32"),
        "words": random.randint(0, WORDS, [ROWS, 2]),
        "weight": weight.astype("float32"),
    }


def assert_as_specified(seed):
    drawn = draw(seed)
    task_class = type("Random", (Random,), {"drawn": drawn})
    batch = data(drawn, seed)
    what = str(drawn)
    assert_as_plain(task_class, batch, drawn.replicas, drawn.microbatches, steps=STEPS, seed=seed, what=what)


@pytest.mark.parametrize("seed", SHORT)
def test_the_engine_does_what_the_specification_says(seed):
    assert_as_specified(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG)
def test_the_engine_does_what_the_specification_says_of_many_more(seed):
    assert_as_specified(seed)


def test_examples_have_every_value_and_the_long_ones_every_two():
    many, short, all_chosen = ([draw(seed) for seed in seeds] for seeds in (range(120), SHORT, [*SHORT, *LONG]))
    assert together(short, 1) >= together(many, 1)
    assert together(map(resolved, all_chosen), 2) >= together(map(resolved, many), 2)
