"""The rules of the race: each as gin bindings, with the rates that its search tries."""

from typing import NamedTuple


class Rule(NamedTuple):
    """A rule of the race. Its bindings give it `@warmup_cosine()`, and have `{undecayed}` and `{ends}` of a work."""

    transforms: str  # after the clipped gradients
    bindings: tuple[str, ...]
    peaks: tuple[float, ...]  # that the search tries, all with equal budgets


def _adamw(scope: str = "") -> tuple[str, ...]:
    """Returns the bindings of AdamW, those of `configs/text_nano.gin`, with the rate of the race."""
    return (
        f"{scope}adamw.learning_rate = @warmup_cosine()",
        f"{scope}adamw.weight_decay = 0.1",
        f"{scope}adamw.no_decay = {{undecayed}}",
        f"{scope}adamw.beta_2 = 0.99",
    )


def _decayed(name: str, decay: float, *more: str) -> tuple[str, ...]:
    own = ("learning_rate = @warmup_cosine()", f"weight_decay = {decay}", "no_decay = {undecayed}", *more)
    return tuple(f"{name}.{text}" for text in own)


# Embeddings and the last layer have AdamW at the rate of `configs/text_nano.gin`; the search is for the matrices'.
_MUON = (
    "muon.learning_rate = @warmup_cosine()",
    "muon.weight_decay = 0.1",
    "muon.kernels = True",
    "muon.other_for = {ends}",
    "muon.other = @other/adamw()",
    *(text.replace("@warmup", "@other/warmup") for text in _adamw("other/")),
    "other/warmup_cosine.peak_rate = 3e-3",
)
_ADAM_PEAKS = (1e-3, 3e-3, 6e-3, 1e-2, 2e-2)

RULES = {
    "adamw": Rule("@adamw()", _adamw(), _ADAM_PEAKS),
    "cautious": Rule("@cautious()", ("cautious.inner = @adamw()", *_adamw()), _ADAM_PEAKS),
    "mars": Rule("@mars(), @adamw()", _adamw(), _ADAM_PEAKS),
    "adan": Rule("@adan()", _decayed("adan", 0.02), _ADAM_PEAKS),
    "ademamix": Rule("@ademamix()", _decayed("ademamix", 0.1, "beta_2 = 0.99", "beta_3 = 0.999"), _ADAM_PEAKS),
    "lion": Rule("@lion()", _decayed("lion", 0.3), (1e-4, 3e-4, 6e-4, 1e-3, 2e-3)),
    "soap": Rule("@soap()", _decayed("soap", 0.1), (3e-3, 6e-3, 1e-2, 2e-2, 4e-2)),
    "muon": Rule("@muon()", _MUON, (3e-3, 6e-3, 1e-2, 2e-2, 4e-2)),
    "normuon": Rule("@muon()", (*_MUON, "muon.neuron_beta = 0.95"), (3e-3, 6e-3, 1e-2, 2e-2, 4e-2)),
}
