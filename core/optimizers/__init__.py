"""Optimizers: update rules and schedules, `chain`, and `Optimizer`, which holds the variables of a rule."""

from core.optimizers.adabelief import adabelief
from core.optimizers.adafactor import adafactor
from core.optimizers.adagrad import adadelta, adagrad, rmsprop
from core.optimizers.adam import adam, adamw
from core.optimizers.adam_variants import adamax, amsgrad, nadam, radam
from core.optimizers.adan import adan
from core.optimizers.ademamix import ademamix
from core.optimizers.averaged import averaged
from core.optimizers.averaging import ema, polyak
from core.optimizers.cautious import cautious, cautious_decay
from core.optimizers.chain import chain
from core.optimizers.clipping import adaptive_clip, clip_by_global_norm, clip_by_norm, clip_by_value
from core.optimizers.d_adaptation import dadapt_adamw
from core.optimizers.dog import dog
from core.optimizers.finite import apply_if_finite
from core.optimizers.gradients import centralise, gradient_noise, weight_decay
from core.optimizers.groups import frozen, groups
from core.optimizers.last_rates import last_rates
from core.optimizers.layerwise import lamb, lars
from core.optimizers.lbfgs import lbfgs
from core.optimizers.lion import lion
from core.optimizers.lookahead import lookahead, sam
from core.optimizers.mars import mars
from core.optimizers.mechanic import mechanic
from core.optimizers.muon import muon
from core.optimizers.mup import mup
from core.optimizers.optimistic import optimistic
from core.optimizers.optimizer import Optimizer
from core.optimizers.plateau import reduce_on_plateau
from core.optimizers.prodigy import prodigy
from core.optimizers.psgd_kron import psgd_kron
from core.optimizers.rprop import rprop
from core.optimizers.schedule_free import schedule_free_adamw
from core.optimizers.schedules import (
    constant,
    cosine,
    cosine_restarts,
    exponential,
    half_life,
    inverse_square_root,
    join,
    linear,
    one_cycle,
    piecewise_constant,
    polynomial,
    rising_power,
    warmup_cosine,
    warmup_stable_decay,
)
from core.optimizers.sgd import sgd
from core.optimizers.shampoo import shampoo
from core.optimizers.soap import soap
from core.optimizers.sophia import sophia
from core.optimizers.transform import Schedule, Transform, named, observer, stateful, stateless

__all__ = [
    "Optimizer",
    "Schedule",
    "Transform",
    "adabelief",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "adan",
    "adaptive_clip",
    "ademamix",
    "amsgrad",
    "apply_if_finite",
    "averaged",
    "cautious",
    "cautious_decay",
    "centralise",
    "chain",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "constant",
    "cosine",
    "cosine_restarts",
    "dadapt_adamw",
    "dog",
    "ema",
    "exponential",
    "frozen",
    "gradient_noise",
    "groups",
    "half_life",
    "inverse_square_root",
    "join",
    "lamb",
    "lars",
    "last_rates",
    "lbfgs",
    "linear",
    "lion",
    "lookahead",
    "mars",
    "mechanic",
    "muon",
    "mup",
    "nadam",
    "named",
    "observer",
    "one_cycle",
    "optimistic",
    "piecewise_constant",
    "polyak",
    "polynomial",
    "prodigy",
    "psgd_kron",
    "radam",
    "reduce_on_plateau",
    "rising_power",
    "rmsprop",
    "rprop",
    "sam",
    "schedule_free_adamw",
    "sgd",
    "shampoo",
    "soap",
    "sophia",
    "stateful",
    "stateless",
    "warmup_cosine",
    "warmup_stable_decay",
    "weight_decay",
]
