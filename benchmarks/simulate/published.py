"""Published GPU measurements and the model's predictions for them; this project measured none of them."""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.simulate.check import Check
from benchmarks.simulate.fit import pair
from benchmarks.simulate.model import Job, Link, Network, efficiency, ring, slowest, step_seconds

MEGABYTES = {"Inception v3": 95.0, "ResNet-50": 102.0, "ResNet-152": 241.0, "AlexNet": 244.0, "VGG-16": 553.0}
# Assumed, as no source states it: seconds of latency per message, and that half of a backward pass overlaps with
# messages between machines. (The loss between GPUs of one machine was fitted as published, overlap included.)
HOP, OVERLAP = 1e-5, 1 / 3

Rows = dict[tuple[str, int], tuple[float, ...]]  # by model and images a GPU: images a second of 1, 2, 4 and 8 GPUs
P100: Rows = {
    ("Inception v3", 64): (142, 284, 569, 1131),
    ("ResNet-50", 64): (219, 422, 852, 1734),
    ("ResNet-152", 64): (91.8, 181, 356, 716),
    ("AlexNet", 512): (2987, 5658, 10509, 17822),
    ("VGG-16", 64): (154, 295, 584, 1081),
    ("Inception v3", 32): (128, 259, 520, 995),
    ("ResNet-50", 32): (195, 368, 768, 1485),
    ("ResNet-152", 32): (82.7, 160, 317, 632),
    ("VGG-16", 32): (144, 281, 549, 820),
}
K80: Rows = {
    ("Inception v3", 64): (30.8, 58.7, 117, 230),
    ("ResNet-50", 64): (51.5, 98.0, 195, 384),
    ("ResNet-152", 32): (19.7, 37.6, 74.9, 149),
    ("AlexNet", 512): (684, 1244, 2479, 4853),
    ("VGG-16", 32): (36.3, 69.4, 141, 260),
    ("Inception v3", 32): (29.9, 57.5, 114, 216),
    ("ResNet-50", 32): (49.0, 94.1, 184, 355),
}
# 8 GPUs a machine and 10 Gbit/s between them: images a second of 1, 16, 32 and 64 GPUs.
K80_MACHINES: Rows = {
    ("Inception v3", 64): (29.7, 459, 902, 1783),
    ("ResNet-50", 64): (52.4, 751, 1388, 2744),
    ("ResNet-152", 32): (19.4, 291, 565, 981),
}
# Megatron-LM's GPT of 8.7 billion parameters in 16 bits each, sharded over 8 of a DGX-2H's 16 V100. A step of 1.2
# billion on one took 1.288 s; 72 layers of 3072 sum the activations of 8 texts of 1,024 tokens four times each.
GPT = Job(1.288 * 8.7 / 8 / 1.2, 2 * 8.7e9, cut=8, sums=4 * 72, activations=2 * 8 * 1024 * 3072)
DGX2 = Network(within=Link(HOP, 150e9), between=Link(HOP, 100e9), per_machine=16)
UNKNOWN = "no source found"


class Machine(NamedTuple):
    """GPUs joined by a link, and the fitted spread of their step times."""

    link: Link
    spread: float

    def job(self, model: str, images: int, rate: float, *, overlap: float = 0.0) -> Job:
        """Returns the job of a GPU that processes `rate` images a second alone."""
        return Job(images / rate, 1e6 * MEGABYTES[model], spread=self.spread, overlap=overlap)

    def network(self, *, gigabits: float, per_machine: int = 8) -> Network:
        """Returns the network of such machines, joined by a link of this speed in Gbit/s."""
        return Network(self.link, Link(HOP, 1e9 * gigabits / 8), per_machine)


def machine(rows: Rows) -> Machine:
    """Returns the one bandwidth and spread that fit all rows of 2 and 4 GPUs best."""
    waiting, sending, lost = [], [], []  # parts of the step
    for (model, images), rates in rows.items():
        compute = images / rates[0]
        for n, rate in zip((2, 4), rates[1:3], strict=True):
            step = n * images / rate
            waiting.append((slowest(n, 1.0) - 1) * compute / step)
            sending.append(ring(n, 1e6 * MEGABYTES[model], Link(0.0, 1.0)) / step)
            lost.append(1 - compute / step)
    spread, seconds_per_byte = pair(waiting, sending, lost)
    return Machine(Link(HOP, 1 / seconds_per_byte if seconds_per_byte else math.inf), spread)


def checks() -> list[Check]:
    """Returns the published times that the model wasn't fitted to, with its predictions."""
    return [*_of_one_machine(), *_of_machines(), *_of_a_cut_model()]


def _of_one_machine() -> Iterator[Check]:
    for gpu, rows in (("P100", P100), ("K80", K80)):
        fitted = machine(rows)
        for (model, images), rates in rows.items():
            job, network = fitted.job(model, images, rates[0]), fitted.network(gigabits=10)
            ours = efficiency(job, step_seconds(job, network, 8))
            yield Check(f"{model}, {images} images a GPU, 8 {gpu}", rates[3] / 8 / rates[0], ours, "TensorFlow, 2017")
    p100 = machine(P100)
    job = p100.job("ResNet-50", 64, P100["ResNet-50", 64][0])
    yield Check("ResNet-50, 8 GPUs, 7.64 times one", 7.64 / 8, _at(job, p100.network(gigabits=25), 8), UNKNOWN)
    job = dataclasses.replace(job, overlap=OVERLAP)
    yield Check("ResNet-50, 32 GPUs", 0.915, _at(job, p100.network(gigabits=25), 32), UNKNOWN)


def _of_machines() -> Iterator[Check]:
    p100, k80 = machine(P100), machine(K80)
    for (model, images), rates in K80_MACHINES.items():
        job = k80.job(model, images, rates[0], overlap=OVERLAP)
        for n, rate in zip((16, 32, 64), rates[1:], strict=True):
            ours = _at(job, k80.network(gigabits=10), n)
            yield Check(f"{model}, {images} images a GPU, {n} K80", rate / n / rates[0], ours, "TensorFlow, 2017")
    for model, published in (("Inception v3", 0.90), ("VGG-16", 0.68)):
        job = p100.job(model, 64, P100[model, 64][0], overlap=OVERLAP)
        ours = _at(job, p100.network(gigabits=25, per_machine=4), 512)
        yield Check(f"{model}, 512 Pascal GPUs, 25 Gbit/s", published, ours, "Horovod")
    job = p100.job("ResNet-50", 32, P100["ResNet-50", 32][0], overlap=OVERLAP)
    network = p100.network(gigabits=50)
    ours = _at(job, network, 256) / _at(job, network, 8)
    yield Check("ResNet-50, 256 P100 beside 8, 50 Gbit/s", 0.90, ours, "Goyal et al., 2017")


def _of_a_cut_model() -> Iterator[Check]:
    yield Check("GPT of 8.7 billion, cut over 8 V100", 0.796, _at(GPT, DGX2, 8), "Megatron-LM 1.0")


def _at(job: Job, network: Network, n: int) -> float:
    return efficiency(job, step_seconds(job, network, n))
