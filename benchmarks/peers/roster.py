"""The peers: names, environments, and the works that each is written for."""

from typing import NamedTuple

PROGRAMS = "benchmarks.peers.programs"
DENSE = ("mlp", "softmax", "transformer")  # a convolution in an XLA loop uses XLA's slowest path: seconds a step
SMALL = ("mlp", "softmax")
IMAGES = ("mlp", "softmax", "conv")
ALL = (*DENSE, "conv")
VISION = ("resnet", "vit", "unet")
GANS = ("dcgan", "cyclegan")
WITH_GANS = (*ALL, *GANS)
OF_KERAS = (*WITH_GANS, *VISION)
REPLICAS = ("replicas-mlp", "replicas-wide-1024", "replicas-wide-256")
OURS = (*OF_KERAS, "start", *REPLICAS)


class Peer(NamedTuple):
    """A program and its variant; `environment` is one of `benchmarks.environments`, None is Tapeloop's own."""

    what: str
    program: str
    variant: str
    environment: str | None = None
    works: tuple[str, ...] = ALL


PEERS = {
    "hand-step": Peer("TensorFlow by hand, a step a call", "by_hand", "step"),
    "hand-loop": Peer("TensorFlow by hand, a loop in the graph over an iterator", "by_hand", "loop", works=WITH_GANS),
    "hand-xla": Peer("TensorFlow by hand, that loop, its step by XLA", "by_hand", "xla", works=WITH_GANS),
    "hand-fed": Peer(
        "TensorFlow by hand, stacked steps in one XLA program, fed with batches", "by_hand", "fed", works=DENSE
    ),
    "hand-indices": Peer(
        "TensorFlow by hand, stacked steps, handed indices, a gather a step", "by_hand", "indices", works=DENSE
    ),
    "hand-gather": Peer(
        "TensorFlow by hand, stacked steps, handed indices, one gather", "by_hand", "gather", works=SMALL
    ),
    "keras-default": Peer("Keras `fit`", "in_keras", "default", "keras", works=OF_KERAS),
    "keras-jit": Peer("Keras `fit`, `jit_compile`", "in_keras", "jit", "keras", works=OF_KERAS),
    "keras-chunks": Peer("Keras `fit`, `steps_per_execution`", "in_keras", "chunks", "keras", works=OF_KERAS),
    "keras-both": Peer(
        "Keras `fit`, `jit_compile` and `steps_per_execution`", "in_keras", "jit-chunks", "keras", works=OF_KERAS
    ),
    "orbit-plain": Peer("Orbit and Sonnet", "in_orbit", "plain", "orbit", IMAGES),
    "orbit-jit": Peer("Orbit and Sonnet, the step by XLA", "in_orbit", "jit", "orbit", IMAGES),
    "jax-step": Peer("JAX and Optax, a jitted step a call", "in_jax", "step", "jax"),
    "jax-scan": Peer("JAX and Optax, `lax.scan`, fed with batches", "in_jax", "scan", "jax", DENSE),
    "jax-indices": Peer(
        "JAX and Optax, `lax.scan`, handed indices, a gather a step", "in_jax", "indices", "jax", DENSE
    ),
    "jax-gather": Peer("JAX and Optax, `lax.scan`, handed indices, one gather", "in_jax", "gather", "jax", SMALL),
    "fabric-eager": Peer("PyTorch and Lightning Fabric", "in_fabric", "eager", "torch"),
    "fabric-compiled": Peer("PyTorch and Lightning Fabric, `torch.compile`", "in_fabric", "compiled", "torch"),
    "start-fit": Peer("a minimal script of Keras, `fit`", "start", "fit", "keras", ("start",)),
    "start-batch": Peer("a minimal script of Keras, `train_on_batch`", "start", "train_on_batch", "keras", ("start",)),
    "one-defaults": Peer("Tapeloop on one device, its defaults", "ours", "one-default", works=REPLICAS),
    "one-auto": Peer("Tapeloop on one device, `compile` chosen by itself", "ours", "one-auto", works=REPLICAS),
    "tapeloop-defaults": Peer("Tapeloop, its defaults", "ours", "default", works=OURS),
    "tapeloop-xla": Peer("Tapeloop, `compile` by XLA", "ours", "xla", works=OF_KERAS),
    "tapeloop-auto": Peer("Tapeloop, `compile` chosen by itself", "ours", "auto", works=OURS),
}
DEFAULTS, AUTO = "tapeloop-defaults", "tapeloop-auto"


class Target(NamedTuple):
    """The smallest acceptable ratio of Tapeloop's speed to the fastest of some peers."""

    what: str
    against: tuple[str, ...]
    at_least: float | None  # None: no target, only reported


LOOPS = ("hand-step", "hand-loop", "hand-xla")
INDICES = ("hand-indices", "hand-gather")
HAND = (*LOOPS, "hand-fed", *INDICES)
JAX_INDICES = ("jax-indices", "jax-gather")
JAX = ("jax-step", "jax-scan", *JAX_INDICES)
KERAS = ("keras-default", "keras-jit", "keras-chunks", "keras-both")
FABRIC = ("fabric-eager", "fabric-compiled")
GAN_TARGETS = [Target("best loop by hand", LOOPS, 1.1), Target("Keras at its best", KERAS, 1.25)]


def one_device(at_least: float) -> list[Target]:
    """Returns the one-device peers of a two-replica work."""
    return [Target("one device", ("one-auto",), at_least), Target("one device, defaults", ("one-defaults",), None)]


TARGETS = {
    "mlp": [
        Target("stacked steps handed indices, by hand", INDICES, 0.95),
        Target("best loop by hand with an iterator", LOOPS, 1.8),
        Target("JAX, a step a call", ("jax-step",), 1.4),
        Target("JAX scanned, fed with batches", ("jax-scan",), 0.8),
        Target("JAX scanned, handed indices", JAX_INDICES, None),
        Target("Keras at its best", KERAS, 1.8),
        Target("Fabric", FABRIC, 6.0),
    ],
    "softmax": [
        Target("stacked steps handed indices, by hand", INDICES, 0.95),
        Target("JAX scanned, handed indices", JAX_INDICES, 0.95),
    ],
    "conv": [
        Target("best loop by hand", LOOPS, 1.1),
        Target("JAX", JAX, 4.0),
        Target("Keras at its best", KERAS, 1.15),
        Target("Fabric", FABRIC, 1.6),
    ],
    "transformer": [
        Target("best loop by hand", HAND, 1.15),
        Target("JAX", JAX, 2.6),
        Target("Keras at its best", KERAS, 1.25),
        Target("Fabric", FABRIC, 1.0),
    ],
    "resnet": [Target("Keras at its best", KERAS, 1.0)],
    "vit": [Target("Keras at its best", KERAS, 1.0)],
    "unet": [Target("Keras at its best", KERAS, 1.0)],
    "dcgan": GAN_TARGETS,
    "cyclegan": GAN_TARGETS,
    "start": [Target("a minimal script of Keras", ("start-fit", "start-batch"), 1.11)],
    "replicas-mlp": one_device(0.95),
    "replicas-wide-1024": one_device(0.95),
    "replicas-wide-256": one_device(0.9),
}
