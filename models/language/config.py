"""The configuration of a transformer."""

import dataclasses
from typing import Any

from core.arguments import check_choice, check_positive, check_size
from core.layers import RotaryScaling


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and kinds of the layers of a `Transformer`. The defaults are GPT-2's (Radford et al., 2019).

    Llama (Touvron et al., 2023) has `positions="rotary"`, `norm="rms"`, `feed_forward="swiglu"`, `bias=False` and
    `tied=False`, since version 3.1 also a `rotary_scaling`. `hidden` is by default `4 * size`, with SwiGLU about `8
    / 3 * size`. `head_size` is by default `size / num_heads`. `qkv_bias` gives queries, keys and values a bias that
    differs from `bias`. With `qk_norm`, the queries and keys of each head are RMS-normalised (Henry et al., 2020).
    Unless `tied`, the output layer has a matrix of its own. With `logit_cap` c, logits are c·tanh(logits / c), and
    with `score_cap` so are the scores of attention (Gemma Team, 2024). With a `window`, each block attends to the last
    `window` tokens. With `recompute`, only each block's input is stored for the gradient (Chen et al., 2016).

    With `experts`, each block has that many feed-forward networks of width `hidden`, of which each token uses
    `experts_per_token` (see `Experts`). `balance_rate` is the speed at which their loads become equal.

    With `base_width`, the network follows muP (see `core.optimizers.mup`): matrices of blocks are divided by
    √(size / base_width) at the start, and the output layer's inputs are multiplied by base_width / size.
    """

    vocabulary: int
    context: int
    num_layers: int
    size: int
    num_heads: int
    num_kv_heads: int | None = None
    head_size: int | None = None
    hidden: int | None = None
    positions: str = "learned"
    rotary_base: float = 10000.0
    rotary_scaling: RotaryScaling | None = None
    window: int | None = None
    norm: str = "layer"
    epsilon: float = 1e-5
    qk_norm: bool = False
    feed_forward: str = "gelu"
    experts: int | None = None
    experts_per_token: int = 2
    balance_rate: float = 1e-3
    bias: bool = True
    qkv_bias: bool | None = None
    tied: bool = True
    logit_cap: float | None = None
    score_cap: float | None = None
    dropout: float = 0.0
    recompute: bool = False
    base_width: int | None = None

    def __post_init__(self) -> None:
        check_size(
            vocabulary=self.vocabulary,
            context=self.context,
            num_layers=self.num_layers,
            size=self.size,
            num_heads=self.num_heads,
        )
        check_choice("positions", self.positions, ("learned", "rotary", "alibi"))
        check_choice("norm", self.norm, ("layer", "rms"))
        check_choice("feed_forward", self.feed_forward, ("gelu", "swiglu"))
        check_size(hidden=self.hidden_size)
        check_positive(rotary_base=self.rotary_base, epsilon=self.epsilon, balance_rate=self.balance_rate)
        if self.base_width is not None:
            check_size(base_width=self.base_width)
        if self.experts is not None:
            self._check_experts(self.experts)
        if self.logit_cap is not None:
            check_positive(logit_cap=self.logit_cap)

    def _check_experts(self, experts: int) -> None:
        check_size(experts=experts, experts_per_token=self.experts_per_token)
        if self.experts_per_token > experts:
            raise ValueError(
                f"`experts_per_token` is {self.experts_per_token}, but `experts` is {experts}: give at most that."
            )
        if self.base_width is not None:
            raise ValueError(
                f"`experts` is {experts} and `base_width` {self.base_width}, but muP has no rule for a router: leave "
                "one out."
            )

    @property
    def hidden_size(self) -> int:
        """Returns the number of values between the two layers of a feed-forward network."""
        if self.hidden is not None:
            return self.hidden
        return 4 * self.size if self.feed_forward == "gelu" else 8 * self.size // 3

    def settings(self) -> dict[str, Any]:
        """Returns all settings by name, with the values that defaults stand for."""
        return {
            **vars(self),
            "num_kv_heads": self.num_kv_heads or self.num_heads,
            "head_size": self.head_size or self.size // self.num_heads,
            "hidden": self.hidden_size,
            "qkv_bias": self.bias if self.qkv_bias is None else self.qkv_bias,
        }

    @property
    def width_scale(self) -> float:
        """Returns base_width / size; 1 without muP."""
        return 1.0 if self.base_width is None else self.base_width / self.size
