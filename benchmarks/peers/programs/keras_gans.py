"""The Keras GANs of `benchmarks.in_keras` with a work's weights. Epsilon is as in `in_keras.py`."""

from benchmarks.in_keras.cyclegan import CycleGan
from benchmarks.in_keras.dcgan import Dcgan
from benchmarks.peers.programs.gans import RATE, SIZES, copied, kernels_of


def dcgan(work):
    model = Dcgan(epsilon=1e-9)
    copied([*kernels_of(work, "g/start"), *kernels_of(work, "g/body")], kernels(model.g))
    copied(kernels_of(work, "d/"), kernels(model.d))
    return model


def cyclegan(work):
    model = CycleGan(SIZES, rate=RATE, epsilon=1e-9)
    for net in ("g_ab", "g_ba", "d_a", "d_b"):
        copied(kernels_of(work, f"{net}/"), kernels(getattr(model, net)))
    return model


def kernels(net):
    return [v for v in net.trainable_weights if v.name.endswith("kernel")]


GANS = {"dcgan": dcgan, "cyclegan": cyclegan}
FIGURES = {"dcgan": "d_loss", "cyclegan": "loss"}
