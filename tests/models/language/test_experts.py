"""Mixtures of experts: equations, routes of any distribution, and a balance that replicas and microbatches share."""

import numpy as np
import pytest
import tensorflow as tf
from language_lab import CONTEXT, VOCABULARY, batch, make_task, windows

from core.errors import ConfigurationError
from core.module import named_variables
from core.random import Rng
from core.task import Statistics
from core.testing import Run, assemble, assert_task, on_virtual_cpus, on_virtual_mesh
from models import Transformer, TransformerConfig
from models.language.experts import ExpertLoad, routed
from models.language.pretrained import family_of

RNG = Rng.from_seed(0)
SIZES = {"vocabulary": VOCABULARY, "context": CONTEXT, "num_layers": 1, "size": 6, "num_heads": 2}
EXPERTS = 4
KINDS = [
    {"feed_forward": "gelu", "experts_per_token": 1},
    {"feed_forward": "swiglu", "bias": False, "experts_per_token": 2},
]


def layer_of(**settings):
    """Returns a layer of experts with weights far larger than initially, and a balance that decides some choices."""
    config = TransformerConfig(**SIZES, hidden=5, experts=EXPERTS, **settings)
    layer = Transformer(config, rng=RNG).blocks[0].feed_forward
    for i, variable in enumerate(layer.parameters().values()):
        variable.assign(Rng.from_seed(i).normal(variable.shape))
    layer.balance.assign([0.3, -0.1, 0.0, -0.2])
    return layer


def mixture(layer, x):
    """Returns the output for one token, and the experts that it uses, in float64."""
    get = {path: v.numpy().astype("f8") for path, v in named_variables(layer).items()}
    scores = np.exp(x @ get["router/w"])
    scores /= scores.sum()
    chosen = np.argsort(-(scores + get["balance"]), kind="stable")[: layer.top_k]
    gates = scores[chosen] / (scores[chosen].sum() if layer.top_k > 1 else 1.0)
    y = 0.0

    def linear(name, x, e):
        return x @ get[f"{name}/w"][e] + get.get(f"{name}/b", np.zeros(EXPERTS))[e]

    for gate, e in zip(gates, chosen, strict=True):
        hidden = linear("up", x, e)
        if layer.gate is None:
            hidden *= 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
        else:
            z = linear("gate", x, e)
            hidden *= z / (1 + np.exp(-z))
        y = y + gate * linear("down", hidden, e)
    return y, chosen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiled", [False, True])
def test_layer_computes_the_equations_for_each_token_and_counts_its_load(kind, compiled):
    layer, x = layer_of(**kind), RNG.normal([3, 7, 6])
    counts = tf.constant(np.arange(21).reshape(3, 7) % 4 > 0)

    @tf.function(jit_compile=compiled, autograph=False)
    def run(x):
        statistics = Statistics()
        return layer(x, counts, statistics), ExpertLoad.of(statistics)

    found, load = run(x)
    expected, chosen = zip(*(mixture(layer, token) for token in x.numpy().reshape(-1, 6).astype("f8")), strict=True)
    np.testing.assert_allclose(found.numpy().reshape(-1, 6), expected, rtol=1e-4, atol=1e-5)
    by_expert = np.bincount(np.array(chosen)[np.ravel(counts)].ravel(), minlength=EXPERTS)
    np.testing.assert_array_equal(load.chosen, [by_expert])
    assert float(load.result()) == pytest.approx(by_expert.max() / by_expert.mean())
    unbalanced = [np.argmax(token @ layer.router.w.numpy()) for token in x.numpy().reshape(-1, 6)]
    assert (np.array(chosen)[:, 0] != unbalanced).any()  # the balance decides


def test_layer_computes_any_number_of_tokens():
    layer = layer_of(**KINDS[1])
    run = tf.function(layer, input_signature=[tf.TensorSpec([None, None, 6])], autograph=False)
    for shape in ([2, 5, 6], [1, 1, 6], [0, 4, 6]):
        x = RNG.normal(shape)
        np.testing.assert_allclose(run(x), layer(x), atol=1e-5)


def test_every_choice_has_a_slot_of_its_expert_in_any_distribution():
    random = np.random.RandomState(0)
    choices = [random.randint(0, 5, [tokens, k]) for tokens in (1, 2, 7, 40) for k in (1, 3)]
    choices += [np.full([9, 2], 4), np.zeros([9, 1], int), np.resize([0, 0, 0, 3], [25, 1])]
    for chosen in choices:
        routes = routed(tf.constant(chosen, tf.int32), 5)
        slots = np.ravel(routes.slot)
        assert len(set(slots)) == chosen.size == np.sum(routes.filled)
        assert np.ravel(routes.filled)[slots].all()
        np.testing.assert_array_equal(np.repeat(routes.expert, routes.token.shape[1])[slots], chosen.ravel())
        np.testing.assert_array_equal(np.ravel(routes.token)[slots], np.repeat(np.arange(len(chosen)), chosen.shape[1]))


def mixed(*, rng, **settings):
    return make_task(rng=rng, num_layers=1, experts=EXPERTS, experts_per_token=2, balance_rate=0.01, **settings)


def test_mixture_passes_all_checks_of_a_task():
    assert_task(mixed(rng=RNG, dropout=0.1), batch(3), causal="tokens", padding="document", except_for=["bytes"])


@pytest.mark.parametrize(
    ("replicas", "microbatches", "recompute"),
    [(1, 1, False), pytest.param(2, 2, True, marks=pytest.mark.long)],
)
def test_balance_follows_the_load_of_the_global_batch(replicas, microbatches, recompute):
    def make(*, rng):
        return mixed(rng=RNG, recompute=recompute)

    window, statistics = batch(4), Statistics()
    make(rng=RNG).net(window["tokens"][:, :-1], window["document"][:, :-1], RNG, statistics=statistics)
    (sums,) = statistics.sums.values()
    assert int(sums.count) == int(tf.reduce_sum(tf.cast(window["document"][:, :-1] >= 0, tf.int32))) < 4 * CONTEXT
    run = Run(assemble(make, on_virtual_cpus(replicas)), windows(4), microbatches=microbatches)
    found = run.train(1)
    expected = 0.01 * np.sign(np.mean(sums.total) - sums.total)
    assert set(expected) > {0.01}
    np.testing.assert_allclose(found.variables["net/blocks/0/feed_forward/balance"], expected, rtol=1e-6)
    assert found.figures["net/load"][0] == pytest.approx(np.max(sums.total) / np.mean(sums.total))
    assert [x.what for x in run.collectives] == ["gradients"] * (replicas > 1)


def test_balance_evens_a_load_out():
    layer, tokens = layer_of(**KINDS[1]), RNG.normal([256, 6])
    layer.rate = 0.01
    layer.router.w.assign(layer.router.w + tf.constant([0.0, 0.0, 0.0, 1.0]))
    loads = []
    for _ in range(80):
        statistics = Statistics()
        layer(tokens, None, statistics)
        loads.append(float(ExpertLoad.of(statistics).result()))
        for variable, value in statistics.averages().items():
            variable.deref().assign(value)
    assert loads[0] > 1.2 > 1.1 > loads[-1]


def test_experts_are_refused_by_name_where_they_cannot_be():
    with pytest.raises(
        ConfigurationError, match=r"`experts` sort the tokens of all rows by expert.*`Experiment.strategy"
    ):
        Run(assemble(mixed, on_virtual_mesh(2, 1, [])), windows(4)).train(1)
    with pytest.raises(ConfigurationError, match="nearest is gpt2, which has no `experts = 4`"):
        family_of(TransformerConfig(**SIZES, experts=EXPERTS))
    for settings, says in (
        ({"experts": 1}, "`experts_per_token` is 2, but `experts` is 1"),
        ({"experts": 4, "base_width": 4}, "muP has no rule for a router"),
        ({"experts": 4, "balance_rate": 0.0}, "`balance_rate`"),
    ):
        with pytest.raises(ValueError, match=says):
            TransformerConfig(**SIZES, **settings)
