"""Seconds of a training step on n devices, from measurements on few devices.

    T = max(input, compute · slowest + max(0, collectives − overlap · compute))

Rows per device stay the same as devices are added, so the best that n devices can do is n times the examples in the
same time.

>>> gpu = Network(within=Link(5e-6, 45e9), between=Link(10e-6, 3e9), per_machine=8)
>>> job = Job(compute=0.3, gradients=100e6)
>>> [round(step_seconds(job, gpu, n), 3) for n in (1, 8, 64)]
[0.3, 0.304, 0.362]
"""

import dataclasses
import math
from statistics import NormalDist


@dataclasses.dataclass(frozen=True)
class Link:
    """Takes `latency + bytes / bandwidth` seconds for a message."""

    latency: float
    bandwidth: float  # bytes a second

    def seconds(self, size: float) -> float:
        """Returns the seconds of a message of `size` bytes."""
        return self.latency + size / self.bandwidth


@dataclasses.dataclass(frozen=True)
class Network:
    """Joins the devices of a machine with one link each, and machines with another."""

    within: Link
    between: Link
    per_machine: int = 1


@dataclasses.dataclass(frozen=True)
class Job:
    """Cost of a step on one device, in seconds and bytes.

    `spread` is the standard deviation of the time between steps, relative to that time. `overlap` is the part of the
    computation that gradients can overlap with. A model sharded over `cut` devices sums `activations` bytes over them
    `sums` times a step.
    """

    compute: float
    gradients: float  # of the whole model
    input: float = 0.0  # of reading a step's examples, in parallel with the step
    spread: float = 0.0
    overlap: float = 0.0
    cut: int = 1
    sums: int = 0
    activations: float = 0.0


@dataclasses.dataclass(frozen=True)
class Servers:
    """Overhead of an asynchronous step, in seconds, on top of its computation."""

    exchange: float  # a pull and a push of a worker that is alone
    locked: float  # the part during which other workers wait


def ring(n: int, size: float, link: Link) -> float:
    """Returns the seconds of a ring all-reduce: 2 (n − 1) messages of `size / n` bytes, one after the other."""
    return 2 * (n - 1) * link.seconds(size / n) if n > 1 else 0.0


def slowest(n: int, spread: float) -> float:
    """Returns the ratio of the slowest of n normal times to their mean, by Blom's approximation (1958)."""
    return 1 + spread * NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


def reduction(job: Job, network: Network, n: int) -> float:
    """Returns the seconds of a gradient reduction: within each machine, then between the machines."""
    within = min(n, network.per_machine)
    machines = math.ceil(n / network.per_machine)
    shared = ring(max(1, within // job.cut), job.gradients / job.cut, network.within)
    return shared + ring(machines, job.gradients, network.between)


def step_seconds(job: Job, network: Network, n: int, *, slow: float = 1.0) -> float:
    """Returns the seconds of a synchronous step of replicas or of a mesh; one device is `slow` times slower."""
    compute = job.compute * max(slowest(n, job.spread), slow)
    cutting = job.sums * ring(job.cut, job.activations, network.within)
    exposed = max(0.0, reduction(job, network, n) - job.overlap * compute)
    return max(compute + cutting + exposed, job.input)


def local_step_seconds(
    job: Job, network: Network, n: int, *, local_steps: int, state: float, slow: float = 1.0
) -> float:
    """Returns the mean seconds of a local step, with one reduction of `state` bytes per round.

    Variation between steps averages out within a round; a device that is always slow still delays the others.
    """
    compute = job.compute * max(slowest(n, job.spread / math.sqrt(local_steps)), slow)
    met = reduction(dataclasses.replace(job, gradients=state), network, n) / local_steps
    return max(compute + met, job.input)


def asynchronous_rate(job: Job, servers: Servers, n: int, *, slow: float = 1.0) -> float:
    """Returns the steps a second of n workers that don't wait for each other, up to the servers' limit."""
    alone = 1 / (max(job.compute, job.input) + servers.exchange)
    wanted = (n - 1 + 1 / slow) * alone
    return min(wanted, 1 / servers.locked) if servers.locked else wanted


def efficiency(job: Job, seconds: float) -> float:
    """Returns the fraction of n devices' computation that is useful if a step takes `seconds`."""
    return job.compute / seconds
