"""The Markov source: its entropy, computed with NumPy in another way, and measured along the walk."""

import numpy as np
import pytest
from data_lab import everything

from core.data import markov
from core.errors import ConfigurationError


@pytest.fixture(scope="module")
def sources():
    return {split: markov(split, 32) for split in ("train", "test")}


@pytest.mark.parametrize(("symbols", "seed"), [(2, 0), (8, 0), (5, 3)])
def test_the_entropy_is_that_of_the_chain_of_pairs(symbols, seed):
    """Pairs follow pairs: a first-order chain, whose stationary distribution is an eigenvector."""
    source = markov("test", 10, symbols=symbols, seed=seed)
    steps = np.zeros([symbols**2, symbols**2])
    for a in range(symbols):
        for b in range(symbols):
            for c in range(symbols):
                steps[a * symbols + b, b * symbols + c] = source.transitions[a, b, c]
    np.testing.assert_allclose(steps.sum(axis=1), 1.0, rtol=1e-12)
    values, vectors = np.linalg.eig(steps.T)
    often = np.real(vectors[:, np.argmin(np.abs(values - 1.0))])
    often /= often.sum()
    logs = np.log(np.where(steps > 0, steps, 1.0))
    rate = -(often[:, None] * steps * logs).sum()
    np.testing.assert_allclose(source.entropy_rate, rate, rtol=1e-9)
    # The first target of a window, by the chain rule: H(b | a) = H(a, b) - H(a).
    pairs = often.reshape(symbols, symbols)
    ones = pairs.sum(axis=1)
    first = -(pairs * np.log(pairs)).sum() + (ones * np.log(ones)).sum()
    np.testing.assert_allclose(source.entropy, (first + 9 * rate) / 10, rtol=1e-9)
    assert rate < first < np.log(symbols)


def losses_of_the_chain(source):
    """Returns the true chain's loss on a target with a known past, and on any target in windows of 32."""
    tokens = everything(source)["tokens"]
    tokens = tokens[: len(tokens) - 1]  # the last window is filled up
    a, b, c = tokens[:, :-2], tokens[:, 1:-1], tokens[:, 2:]
    loss = -np.log(source.transitions[a, b, c]).mean()
    given_one = source.pairs / source.pairs.sum(axis=1, keepdims=True)
    first = -np.log(given_one[tokens[:, 0], tokens[:, 1]]).mean()
    return loss, (first + 31 * loss) / 32


def test_loss_of_the_true_chain_is_its_entropy(sources):
    for split, share in (("train", 0.005), ("test", 0.01)):
        source = sources[split]
        np.testing.assert_allclose(losses_of_the_chain(source), [source.entropy_rate, source.entropy], rtol=share)


@pytest.mark.parametrize(("seed", "percent"), [(0, -0.07), (3, -0.44)])
def test_on_one_walk_the_true_chain_may_lose_less_by_as_much_as_is_documented(seed, percent):
    source = markov("test", 32, seed=seed)
    _, loss = losses_of_the_chain(source)
    assert round(100 * (loss / source.entropy - 1), 2) == percent


def test_a_split_has_its_own_walk_of_one_chain_and_is_the_same_each_time(sources):
    train, test = sources["train"], sources["test"]
    np.testing.assert_array_equal(train.transitions, test.transitions)
    assert not np.array_equal(everything(train)["tokens"][: len(test)], everything(test)["tokens"])
    np.testing.assert_array_equal(everything(markov("test", 32))["tokens"], everything(test)["tokens"])
    assert not np.array_equal(markov("test", 32, seed=1).transitions, test.transitions)
    assert (len(train), len(test)) == (2**14, 2**11)


def test_symbols_are_letters_and_the_walk_is_one_document(sources):
    source = sources["test"]
    assert (source.tokenizer.vocabulary, source.tokenizer.end) == (9, 8)
    assert source.tokenizer.decode(source.tokenizer.encode(b"abch")) == b"abch"
    assert source.tokenizer.decode([8]) == b""
    with pytest.raises(ConfigurationError, match=r"the text holds b'z', but `markov` knows the letters abcdefgh alone"):
        source.tokenizer.encode(b"az")
    found = everything(source)
    assert set(np.unique(found["tokens"][:-1])) == set(range(8))
    assert set(np.unique(found["document"][:-1])) == {0}
    assert set(np.unique(found["bytes"][:-1])) == {1}


@pytest.mark.parametrize("symbols", [1, 27])
def test_non_letters_are_refused(symbols):
    with pytest.raises(ConfigurationError, match=f"`markov.symbols` is {symbols}; .* 2 to 26"):
        markov("test", 8, symbols=symbols)
