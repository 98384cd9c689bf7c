"""Tiny GANs of every kind, built as in an experiment, and a batch of digits to train them on."""

import functools

import tensorflow as tf

from core.data import digits
from core.losses import adversarial as games
from core.optimizers import adam, chain, ema, sgd
from core.random import Rng
from models import BatchNormGan, Gan, dcgan_networks, mlp_networks

ROWS = 8
BATCH = digits("train").gather(tf.range(ROWS, dtype=tf.int64))
DATA = {key: x.numpy() for key, x in BATCH.items()}

TINY = functools.partial(mlp_networks, g_hidden=[6], d_hidden=[5])
SPECTRAL = functools.partial(TINY, spectral_norm=True)


def tiny_dcgan(norm="group", **settings):
    return functools.partial(dcgan_networks, channels=[2, 4], g_norm=norm, d_norm=norm, **settings)


def made(task=Gan, **settings):
    """Returns a factory of tiny networks, as an experiment calls it."""
    defaults = {
        "networks": TINY,
        "image_shape": [8, 8, 1],
        "game": games.non_saturating(),
        "g_optimizer": chain(adam(0.01), ema(0.9)),
        "d_optimizer": sgd(0.1),
        "latent_size": 3,
    }
    return functools.partial(task, **{**defaults, **settings})


def gan(task=Gan, **settings):
    return made(task, **settings)(rng=Rng.from_seed(0))


def batch_norm_gan(**settings):
    return gan(BatchNormGan, **{"networks": tiny_dcgan("batch"), **settings})
