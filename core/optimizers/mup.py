"""Maximal update parametrization (muP): rates by fan-in, so that a rate tuned on a narrow network suits a wide one."""

from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_size
from core.optimizers.chain import chain
from core.optimizers.paths import matches, matching
from core.optimizers.transform import State, Tensors, Transform


@gin.configurable
def mup(inner: Transform, *, base_width: int, plain: Sequence[str]) -> Transform:
    """Follows Yang et al. (2022), "Tensor programs V", table 8, for Adam and its variants.

    Multiplies each update of a hidden matrix [..., fan_in, outputs] by base_width / fan_in. Patterns of `plain` name
    the input and output layers; these, vectors and scalars keep the rate of `inner`, as in the paper.

    The network does the rest with its own `base_width`, such as `MlpClassifier.base_width`: initial weights and the
    multiplier of its output. Attention heads keep their size, so their number grows with the width. Decoupled weight
    decay shrinks with the rate. An average of the weights goes after `mup` in the chain.
    """
    check_size(base_width=base_width)
    rule = chain(inner)
    if rule.shadow:
        raise ValueError(
            f"`inner` of `mup` is `{inner.name}`, which averages the weights, but `mup` changes the updates that it "
            "saw; put it after: `chain(mup(adam(1e-3), ...), ema())`."
        )

    def scales(params: Mapping[str, Any]) -> dict[str, float]:
        hidden = {
            path: p.shape[-2]
            for path, p in params.items()
            if p.shape.rank >= 2 and not any(matches(pattern, path) for pattern in plain)
        }
        return {path: base_width / fan_in for path, fan_in in hidden.items()}

    def init(params: Tensors) -> State:
        matching(plain, params, argument="plain")
        return rule.init(params)

    def update(
        gradients: Tensors, state: State, params: Tensors, *, step: tf.Tensor, value: tf.Tensor | None = None
    ) -> tuple[Tensors, State]:
        updates, new = rule.update(gradients, state, params, step=step, value=value)
        return {**updates, **{path: scale * updates[path] for path, scale in scales(params).items()}}, new

    return Transform("mup", init, update, rates=rule.rates, linear=rule.linear)
