"""The hand-written GANs of `benchmarks.by_hand` with a work's weights, as steps over a batch by feature."""

import tensorflow as tf

from benchmarks.by_hand.cyclegan import CycleGan, Sizes
from benchmarks.by_hand.dcgan import Dcgan

SIZES, RATE = Sizes(size=64, width=32, blocks=6), 2e-4


def kernels_of(work, net):
    """Returns the kernels of a network in layer order; all other weights are ones and zeros on both sides."""
    return [value for name, value in work.weights.items() if name.startswith(net) and name.endswith("/w")]


def copied(kernels, variables):
    """Assigns kernels; TensorFlow's transposed convolutions swap the channel axes."""
    for value, variable in zip(kernels, variables, strict=True):
        variable.assign(value if value.shape == tuple(variable.shape) else value.transpose(0, 1, 3, 2))


def dcgan(work):
    model = Dcgan(kernel=True)
    first = kernels_of(work, "g/start")
    copied([*first, *kernels_of(work, "g/body")], model.g_kernels)
    copied(kernels_of(work, "d/"), model.d_kernels)

    def step(batch):
        return model.step(tf.cast(batch["image"], tf.float32) * (1.0 / 255.0), batch["latent"])[0]

    return step


def cyclegan(work):
    model = CycleGan(SIZES, rate=RATE, kernel=True)
    for net in ("g_ab", "g_ba", "d_a", "d_b"):
        copied(kernels_of(work, f"{net}/"), getattr(model, net).kernels)
    return lambda batch: model.step(batch["a"], batch["b"])[0]


STEPS = {"dcgan": dcgan, "cyclegan": cyclegan}
