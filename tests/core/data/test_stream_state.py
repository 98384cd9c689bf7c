"""States of streams: an iterator continues from its own, and what JSON would change isn't kept."""

import numpy as np
import pytest

from core.data import Stream
from core.data.stream_pass import InOrder
from core.data.stream_state import begun
from core.errors import DataError


class Places:
    """Counts to seven; the place is its state, in the form that `shown` gives it."""

    def __init__(self, shown=int):
        self.place, self.shown = 0, shown

    def __iter__(self):
        while self.place < 7:
            self.place += 1
            yield {"x": self.place - 1}

    def state_dict(self):
        return {"place": self.shown(self.place)}

    def load_state_dict(self, state):
        self.place = int(state["place"])


@pytest.mark.parametrize("shown", [int, str, lambda place: str(place).encode(), np.int64, np.array])
def test_an_iterator_continues_from_its_state(shown):
    iterator, state = begun(Places(shown), None)
    assert [next(iterator)["x"] for _ in range(3)] == [0, 1, 2]
    iterator, _ = begun(Places(shown), state())
    assert [example["x"] for example in iterator] == [3, 4, 5, 6]


def test_a_state_at_the_end_of_an_epoch_leads_to_the_next_one():
    def make(seed, epoch):
        return Places()

    order = InOrder(Stream(make), seed=3, epoch=0, before=0, count=7)
    order.take(8)
    (_, *ends, following) = order.states
    for before, epoch, state in [*ends, following]:
        again = InOrder(Stream(make), seed=3, epoch=epoch, before=before, count=5, state=state)
        assert again.take(7)["x"].tolist() == list(range(7))
    assert [before for before, *_ in ends] == [7]


def test_an_iterator_without_a_state_cannot_continue():
    with pytest.raises(LookupError, match="its iterator keeps no state now"):
        begun([{"x": 1}], "{}")


class Kept:
    """An empty iterable whose state is `state`."""

    def __init__(self, state=None):
        self.state = state

    def __iter__(self):
        return iter(())

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_a_state_is_read_back_in_its_types():
    state = {"a": [1, 2.5, None, True, "x"], "b": (b"12", ()), "c": np.arange(6, dtype=np.uint8).reshape(2, 3)}
    _, text = begun(Kept(state), None)
    begun(again := Kept(), text())
    np.testing.assert_equal(again.state, state)
    assert [type(x) for x in again.state["b"]] == [bytes, tuple]
    again.state["c"][0, 0] = 7  # PyTorch refuses arrays that can't be written


IN_ITSELF = []
IN_ITSELF.append(IN_ITSELF)


@pytest.mark.parametrize(
    "state", [{1: 2}, {"x"}, IN_ITSELF, {"x": np.nan}, {"base64": "x"}, np.array([None]), np.random]
)
def test_a_state_that_would_change_is_not_kept(state):
    _, text = begun(Kept(state), None)
    assert text() is None


def test_an_object_with_a_state_is_made_anew_in_each_epoch():
    one = Places()
    with pytest.raises(DataError, match="is one object in all epochs, a `Places` with a state: make it anew"):
        InOrder(Stream(lambda seed, epoch: one), seed=0, epoch=0, before=0, count=5).take(9)
