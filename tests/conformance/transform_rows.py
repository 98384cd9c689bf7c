"""The table of transforms that precede or follow an optimizer: one row each, with its peer."""

import optax

from core import optimizers as ours
from core.optimizers import Transform, chain

from .optimizer_battery import Row
from .optimizer_peers import (
    SHAPES,
    average_of_weights,
    by_last_axis,
    each_by_itself,
    in_float64,
    mask,
    noise_of_random,
    numpy_average,
    numpy_power_average,
)


def after(*transforms: Transform) -> Transform:
    """Puts gradient descent after a transform of gradients."""
    return chain(*transforms, ours.sgd(0.1))


def optax_after(*transforms: optax.GradientTransformation) -> optax.GradientTransformation:
    return optax.chain(*transforms, optax.sgd(0.1))


TRANSFORMS = (
    Row("clip_by_value", lambda: after(ours.clip_by_value(0.5)), lambda: optax_after(optax.clip(0.5)), "Optax", ""),
    Row("clip_by_norm", lambda: after(ours.clip_by_norm(1.0)),
        lambda: optax_after(each_by_itself(lambda: optax.clip_by_global_norm(1.0))), "Optax, one by one",
        "Pascanu et al. (2013)"),
    Row("clip_by_global_norm", lambda: after(ours.clip_by_global_norm(8.0)),
        lambda: optax_after(optax.clip_by_global_norm(8.0)), "Optax", "Pascanu et al. (2013)"),
    Row("adaptive_clip", lambda: after(ours.adaptive_clip(0.5)), lambda: optax_after(optax.adaptive_grad_clip(0.5)),
        "Optax", "Brock et al. (2021)", "gradients, parameters"),
    Row("weight_decay", lambda: after(ours.weight_decay(0.1, only=["net/*"], exclude=["b"])),
        lambda: optax_after(optax.add_decayed_weights(0.1, mask("net/0/b", "scale"))), "Optax",
        "Krogh and Hertz (1992)", "gradients, parameters"),
    Row(
        "groups",
        lambda: ours.groups({"scale": ours.frozen(), "0/*": ours.sgd(0.1)}, otherwise=ours.adam(0.01)),
        lambda: in_float64(
            lambda: optax.partition(
                {"frozen": optax.set_to_zero(), "sgd": optax.sgd(0.1), "adam": optax.adam(0.01)},
                {"net/0/w": "sgd", "net/0/b": "sgd", "net/1/kernel": "adam", "scale": "frozen"},
            )
        ),
        "Optax, float64",
        "",
    ),
    Row("frozen", lambda: ours.groups({"net/*": ours.sgd(0.1)}, otherwise=ours.frozen()),
        lambda: optax.chain(optax.sgd(0.1), optax.masked(optax.set_to_zero(), {**mask(*SHAPES), "scale": True})),
        "Optax", ""),
    Row("gradient_noise", lambda: after(ours.gradient_noise(0.5, seed=7)),
        lambda: optax_after(noise_of_random(0.5, 0.55, 7)), "JAX, on the same draws", "Neelakantan et al. (2015)",
        "gradients, step"),
    Row("centralise", lambda: after(ours.centralise()), lambda: optax_after(by_last_axis(optax.centralize())),
        "Optax, axes moved", "Yong et al. (2020)", reason="The outputs are the last axis; in Optax, the first."),
    Row("apply_if_finite", lambda: ours.apply_if_finite(ours.adam(0.01)),
        lambda: in_float64(lambda: optax.apply_if_finite(optax.adam(0.01), 5)), "Optax, float64", "",
        "gradients, step"),
    Row(
        "reduce_on_plateau",
        lambda: chain(ours.sgd(0.1), ours.reduce_on_plateau(factor=0.5, patience=3, cooldown=2, accumulate=2)),
        lambda: optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(0.5, 3, cooldown=2, accumulation_size=2)),
        "Optax",
        "",
        "gradients, value",
        steps=50,  # the losses level off late
    ),
    Row("optimistic", lambda: chain(ours.sgd(ours.linear(0.1, 0.0, steps=40)), ours.optimistic(0.5)),
        lambda: optax.chain(optax.sgd(optax.linear_schedule(0.1, 0.0, 40)),
                            optax.scale_by_optimistic_gradient(1.0, 0.5)), "Optax", "Daskalakis et al. (2018)",
        "gradients, step"),
    Row("optimistic", lambda: chain(ours.adam(0.01), ours.optimistic()),
        lambda: in_float64(lambda: optax.chain(optax.adam(0.01), optax.scale_by_optimistic_gradient(1.0, 1.0))),
        "Optax, float64", "Daskalakis et al. (2018)", "gradients, step", case="after Adam"),
    Row("ema", lambda: chain(ours.sgd(0.1), ours.ema(0.9)), lambda: average_of_weights(optax.ema(0.9)), "Optax", "",
        "parameters, step"),
    Row("ema", lambda: chain(ours.sgd(0.1), ours.ema(profile="power", std=0.1, start=2)),
        lambda: average_of_weights(numpy_power_average(0.1, 2), traced=False), "NumPy, float64", "Karras et al. (2024)",
        "parameters, step", case="power", steps=14),
    Row("polyak", lambda: chain(ours.sgd(0.1), ours.polyak(start=10)),
        lambda: average_of_weights(numpy_average(10), traced=False), "NumPy, float64", "Polyak and Juditsky (1992)",
        "parameters, step", steps=14),
)  # fmt: skip
