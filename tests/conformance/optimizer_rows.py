"""The table of optimizers, transforms and schedules: one row each, with the peer it is checked against."""

import functools

import optax

from core import optimizers as ours

from .narrow_rows import NARROW
from .optimizer_battery import Row
from .optimizer_peers import (
    in_float64,
    mask,
    numpy_lbfgs,
    numpy_rprop,
    numpy_shampoo,
    optax_lookahead,
    optax_muon,
    optax_prodigy,
    optax_sam,
    optax_schedule_free,
    scaled,
)
from .schedule_rows import SCHEDULES
from .transform_rows import TRANSFORMS

ADAM = "Kingma and Ba (2015)"
RATE = functools.partial(optax.linear_schedule, 0.02, 0.0, 40)

OPTIMIZERS = (
    Row("sgd", lambda: ours.sgd(0.1), lambda: optax.sgd(0.1), "Optax", "Robbins and Monro (1951)"),
    Row("sgd", lambda: ours.sgd(0.05, momentum=0.9), lambda: optax.sgd(0.05, 0.9), "Optax", "Polyak (1964)",
        case="momentum"),
    Row("sgd", lambda: ours.sgd(ours.linear(0.02, 0.0, steps=40), momentum=0.9, nesterov=True),
        lambda: optax.sgd(RATE(), 0.9, nesterov=True), "Optax", "Sutskever et al. (2013)", case="Nesterov, schedule",
        reason="The rate multiplies the sum, as in PyTorch and Optax; in the paper it is inside.",
        needs="gradients, step"),
    Row("adam", lambda: ours.adam(0.01), lambda: in_float64(lambda: optax.adam(0.01)), "Optax, float64", ADAM,
        "gradients, step"),
    Row("adam", lambda: ours.adam(ours.linear(0.02, 0.0, steps=40), beta_1=0.8, beta_2=0.95, epsilon=1e-3),
        lambda: in_float64(lambda: optax.adam(RATE(), 0.8, 0.95, 1e-3)), "Optax, float64", ADAM, "gradients, step",
        case="schedule, large epsilon"),
    Row("adamw", lambda: ours.adamw(0.01, weight_decay=0.1, no_decay=["b", "scale"]),
        lambda: in_float64(lambda: optax.adamw(0.01, weight_decay=0.1, mask=mask("net/0/b", "scale"))),
        "Optax, float64", "Loshchilov and Hutter (2019)", "gradients, step, parameters",
        reason="The kernel's step and the decay are rounded one after the other; the pure rule differs by 1e-7."),
    Row(
        "amsgrad",
        lambda: ours.amsgrad(0.01),
        lambda: in_float64(lambda: optax.amsgrad(0.01)),
        "Optax, float64",
        "Reddi et al. (2018)",
        "gradients, step",
        reason="The largest corrected second moment, as in Optax; the paper corrects neither moment. In float32 Optax "
        "differs by 1.3e-6 from itself compiled and not.",
    ),
    Row(
        "nadam",
        lambda: ours.nadam(0.01),
        lambda: in_float64(lambda: optax.nadam(0.01)),
        "Optax, float64",
        "Dozat (2016)",
        "gradients, step",
        reason="As in Optax, without the paper's factor β2 on the second moment, and without its warm-up of β1, which "
        "PyTorch has.",
    ),
    Row(
        "radam",
        lambda: ours.radam(0.01),
        lambda: in_float64(lambda: optax.radam(0.01)),
        "Optax, float64",
        "Liu et al. (2020)",
        "gradients, step",
        reason="Adaptive from a length of 5 on, as in Optax; the paper says more than 4. In float32 Optax differs by "
        "5.7e-6 from itself compiled and not.",
    ),
    Row("adamax", lambda: ours.adamax(0.01), lambda: in_float64(lambda: optax.adamax(0.01)), "Optax, float64", ADAM,
        "gradients, step", reason="Epsilon is added to the norm; Optax adds it to the gradient within."),
    Row("rmsprop", lambda: ours.rmsprop(0.01), lambda: optax.rmsprop(0.01), "Optax", "Tieleman and Hinton (2012)"),
    Row(
        "rmsprop",
        lambda: ours.rmsprop(0.005, momentum=0.9, centred=True, epsilon=1e-3),
        lambda: optax.rmsprop(0.005, momentum=0.9, centered=True, eps=1e-3),
        "Optax",
        "Graves (2013)",
        case="centred, momentum",
        reason="The rate is inside the momentum and epsilon under the root, as in Optax and TensorFlow; in PyTorch "
        "neither is.",
    ),
    Row("adagrad", lambda: ours.adagrad(0.1), lambda: optax.adagrad(0.1), "Optax", "Duchi et al. (2011)",
        reason="The sum begins at 0.1, as in Optax and TensorFlow; in PyTorch, at zero."),
    Row("adadelta", lambda: ours.adadelta(), lambda: optax.adadelta(1.0), "Optax", "Zeiler (2012)"),
    Row("adafactor", lambda: ours.adafactor(0.05, min_factored_size=3, beta_1=0.9),
        lambda: optax.adafactor(0.05, min_dim_size_to_factor=3, momentum=0.9), "Optax", "Shazeer and Stern (2018)",
        "gradients, step, parameters"),
    Row("adafactor", lambda: ours.adafactor(0.01, scale_by_parameter=False),
        lambda: optax.adafactor(0.01, multiply_by_parameter_scale=False), "Optax", "Shazeer and Stern (2018)",
        "gradients, step", case="not factored"),
    Row("lamb", lambda: ours.lamb(0.01, weight_decay=0.1, no_decay=["b"]),
        lambda: in_float64(lambda: optax.lamb(0.01, weight_decay=0.1, mask=mask("net/0/b"))), "Optax, float64",
        "You et al. (2020)", "gradients, step, parameters"),
    Row("lars", lambda: ours.lars(1.0, weight_decay=1e-2, plain=["b"]),
        lambda: optax.lars(1.0, 1e-2, mask("net/0/b"), trust_ratio_mask=mask("net/0/b")), "Optax", "You et al. (2017)",
        "gradients, parameters",
        reason="By the norm of gradient and decay together, as in Optax; the paper adds their norms."),
    Row("lion", lambda: ours.lion(0.003, weight_decay=0.1, no_decay=["b"]),
        lambda: optax.lion(0.003, weight_decay=0.1, mask=mask("net/0/b")), "Optax", "Chen et al. (2023)",
        "gradients, parameters"),
    Row("muon", lambda: ours.muon(0.01, weight_decay=0.1, other=ours.adamw(0.003)), optax_muon, "Optax",
        "Jordan et al. (2024)", "gradients, step, parameters",
        reason="Nesterov's mix with Nadam's corrections, as in Optax; Jordan's code and PyTorch mix without."),
    Row("shampoo", lambda: ours.shampoo(0.05, root_every=3, epsilon=1.0), lambda: numpy_shampoo(0.05, 0.9, 1.0, 3),
        "NumPy, float64", "Gupta et al. (2018)", "gradients, step"),
    Row(
        "shampoo",
        lambda: ours.shampoo(0.05),
        lambda: numpy_shampoo(0.05, 0.9, 1e-4, 1),
        "NumPy, float64",
        "Gupta et al. (2018)",
        "gradients",
        case="small epsilon",
        tolerance=1e-5,
        xla_tolerance=1e-4,
        reason="Of a sum in float32 the smallest eigenvalues, here 1e-4 beside 20, are known to a few digits. "
        "XLA's eigenvectors are good to 1e-6.",
    ),
    Row("schedule_free_adamw", lambda: ours.schedule_free_adamw(ours.linear(0.0, 0.01, steps=10), weight_decay=0.1),
        lambda: in_float64(optax_schedule_free), "Optax, float64", "Defazio et al. (2024)",
        "gradients, step, parameters", steps=14,
        reason="An update's rate is also its weight in the average; Optax takes the next update's."),
    Row("lookahead", lambda: ours.lookahead(ours.adam(0.01)), lambda: in_float64(optax_lookahead), "Optax, float64",
        "Zhang et al. (2019)", "gradients, step, parameters", steps=14),
    Row("sam", lambda: ours.sam(ours.adam(ours.linear(0.02, 0.0, steps=20))), lambda: in_float64(optax_sam),
        "Optax, float64", "Foret et al. (2021)", "gradients, step, parameters",
        reason="The alternating form: two updates, on two batches, make one."),
    Row("mup", lambda: ours.mup(ours.adam(0.01), base_width=2, plain=["b"]),
        lambda: in_float64(lambda: optax.chain(optax.adam(0.01), scaled({"net/0/w": 2 / 6, "net/1/kernel": 2 / 3}))),
        "Optax, float64", "Yang et al. (2022)", "gradients, step",
        reason="The peer has the factors of the matrix [6, 4] and the kernel [2, 2, 3, 5] written out."),
    Row("prodigy", lambda: ours.prodigy(ours.linear(1.0, 0.5, steps=40), d_0=1e-3, weight_decay=0.1, no_decay=["b"]),
        lambda: in_float64(lambda: optax_prodigy(optax.linear_schedule(1.0, 0.5, 40), 1e-3)), "Optax, float64",
        "Mishchenko and Defazio (2024)", "gradients, step, parameters", steps=14,
        reason="With Adam's bias corrections, as in Optax; the paper has none."),
    Row("dadapt_adamw", lambda: ours.dadapt_adamw(d_0=1e-3, weight_decay=0.1),
        lambda: in_float64(lambda: optax.contrib.dadapt_adamw(1.0, estim_lr0=1e-3, weight_decay=0.1)),
        "Optax, float64", "Defazio and Mishchenko (2023)", "gradients, step, parameters", steps=14,
        reason="With Adam's bias corrections, as in Optax; the paper has none."),
    Row("dog", lambda: ours.dog(ours.linear(1.0, 0.5, steps=40), initial_distance=0.01),
        lambda: in_float64(lambda: optax.contrib.dog(optax.linear_schedule(1.0, 0.5, 40), ("heuristic", 0.01))),
        "Optax, float64", "Ivgi et al. (2023)", "gradients, step, parameters"),
    Row("mechanic", lambda: ours.mechanic(ours.adam(0.1), initial_scale=0.01),
        lambda: in_float64(lambda: optax.contrib.mechanize(optax.adam(0.1), s_init=0.01)), "Optax, float64",
        "Cutkosky et al. (2023)", "gradients, step, parameters", steps=14,
        tolerance=1e-5, xla_tolerance=1e-5,
        reason="Clips h by its earlier magnitudes, as in Optax; the paper doesn't. Δ, the distance moved over S, is "
        "rounded, as in Optax."),
    Row("rprop", lambda: ours.rprop(0.05, max_step_size=0.1), lambda: numpy_rprop(0.05, 0.1), "NumPy",
        "Igel and Hüsken (2003)", reason="Optax 0.2.8 applies each update one step late."),
    Row("lbfgs", lambda: ours.lbfgs(0.05, memory_size=3), lambda: numpy_lbfgs(0.05, 3), "NumPy, float64",
        "Liu and Nocedal (1989)", "gradients, step, parameters",
        reason="Without a line search. A pair without positive curvature isn't stored; Optax stores it."),
)  # fmt: skip

ROWS = (*OPTIMIZERS, *NARROW, *TRANSFORMS, *SCHEDULES)
