"""The coordinate check of muP: it accepts the shipped networks with `base_width`, and names what breaks the rule."""

import functools
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import tensorflow as tf

from core.optimizers import Transform, adam, chain, ema, mup
from core.random import Rng
from core.testing import assert_mup
from models.classifiers.mlp import MlpClassifier
from models.language.task import LanguageModel

IMAGES = {"image": Rng.from_seed(0).normal([32, 8, 8, 1]), "label": tf.range(32) % 10}
TOKENS = {
    "tokens": tf.constant(np.random.default_rng(0).integers(0, 50, (8, 9)), tf.int32),
    "document": tf.zeros([8, 9], tf.int32),
    "bytes": tf.ones([8, 9], tf.int32),
}
WIDTHS = (32, 64, 128)


def perceptron(width: int, *, rng: Rng, rule: Transform, base_width: int | None = 32) -> MlpClassifier:
    return MlpClassifier(rng=rng, sizes=[64, width, width, 10], base_width=base_width, optimizer=rule)


def transformer(width: int, *, rng: Rng) -> LanguageModel:
    rule = mup(adam(1e-2), base_width=32, plain=["tokens/w", "positions/w"])
    sizes = {"vocabulary": 50, "context": 8, "num_layers": 1, "size": width, "num_heads": width // 16}
    return LanguageModel(rng=rng, **sizes, base_width=32, optimizer=rule)


def scaled(*plain: str) -> Transform:
    return mup(adam(1e-2), base_width=32, plain=plain)


def test_perceptron_moves_equally_far_at_any_width(tmp_path: Path) -> None:
    make = functools.partial(perceptron, rule=scaled("layers/0/w", "layers/2/w"))
    sizes = assert_mup(make, IMAGES, WIDTHS, seeds=2, picture=tmp_path / "mup.svg")
    assert len(sizes["net"].change) == len(WIDTHS)
    drawn = ElementTree.parse(tmp_path / "mup.svg").getroot()
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"net/layers/1", *map(str, WIDTHS)} <= set(words)


@pytest.mark.long
def test_transformer_moves_equally_far_at_any_width() -> None:
    assert_mup(transformer, TOKENS, WIDTHS, seeds=2)


@pytest.mark.parametrize(
    ("rule", "base_width", "message"),
    [
        (adam(1e-2), None, r"change of `net/layers/1` grows with the width, as its power 0\.\d"),
        (scaled("layers/*/w"), 32, r"change of `net/layers/1` grows .* a hidden layer that `plain` of `mup` names"),
        (scaled("layers/0/w", "layers/2/w"), None, r"change of `net.*` grows .* a network without `base_width`"),
    ],
    ids=["standard", "hidden layer named", "output not scaled"],
)
def test_violation_is_named(rule: Transform, base_width: int | None, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_mup(functools.partial(perceptron, rule=rule, base_width=base_width), IMAGES, (32, 256), seeds=1)


def test_network_of_the_base_width_is_the_plain_one() -> None:
    rng = Rng.from_seed(0)
    plain, based = perceptron(32, rng=rng, rule=adam(0.1), base_width=None), perceptron(32, rng=rng, rule=adam(0.1))
    assert all(np.array_equal(x, based.net.parameters()[path]) for path, x in plain.net.parameters().items())
    assert np.array_equal(plain.net(IMAGES["image"]), based.net(IMAGES["image"]))


def test_averages_within_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`inner` of `mup` is `chain`, which averages .*: `chain\(mup\("):
        mup(chain(adam(0.1), ema()), base_width=32, plain=["b"])
