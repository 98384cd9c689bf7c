"""Seconds of a training step on n devices, as functions of what was measured on few.

    T = max(input, compute · slowest + max(0, collectives − overlap · compute))

Rows per device stay the same as devices are added, so the best that n can do is n times the examples in the same time.

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
        """Returns how long `size` bytes take."""
        return self.latency + size / self.bandwidth


@dataclasses.dataclass(frozen=True)
class Network:
    """Joins the devices of a machine by one link each, and machines by another."""

    within: Link
    between: Link
    per_machine: int = 1


@dataclasses.dataclass(frozen=True)
class Job:
    """Holds what one device spends on a step; seconds and bytes.

    `spread` is the standard deviation of its time between steps, as a part of the time. `overlap` is the part of the
    computing beside which gradients may travel already. A model that is cut over `cut` devices sums `activations` bytes
    over them `sums` times a step.
    """

    compute: float
    gradients: float  # of the whole model
    input: float = 0.0  # of reading a step's examples, which goes on beside the step
    spread: float = 0.0
    overlap: float = 0.0
    cut: int = 1
    sums: int = 0
    activations: float = 0.0


@dataclasses.dataclass(frozen=True)
class Servers:
    """Holds what asynchronous training spends beside the computing, in seconds a step."""

    exchange: float  # in which a worker pulls and pushes, where it is alone
    locked: float  # of these those in which nobody else is served


def ring(n: int, size: float, link: Link) -> float:
    """Returns the seconds of an all-reduce in a ring: 2 (n − 1) messages of `size / n` bytes, one after the other."""
    return 2 * (n - 1) * link.seconds(size / n) if n > 1 else 0.0


def slowest(n: int, spread: float) -> float:
    """Returns how much longer than the mean the slowest of n normal times takes, by Blom's approximation (1958)."""
    return 1 + spread * NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


def reduction(job: Job, network: Network, n: int) -> float:
    """Returns the seconds that gradients take: summed within each machine, then between the machines."""
    within = min(n, network.per_machine)
    machines = math.ceil(n / network.per_machine)
    shared = ring(max(1, within // job.cut), job.gradients / job.cut, network.within)
    return shared + ring(machines, job.gradients, network.between)


def step_seconds(job: Job, network: Network, n: int, *, slow: float = 1.0) -> float:
    """Returns the seconds of a synchronous step of replicas, or of a mesh; one device is `slow` times slower."""
    compute = job.compute * max(slowest(n, job.spread), slow)
    cutting = job.sums * ring(job.cut, job.activations, network.within)
    exposed = max(0.0, reduction(job, network, n) - job.overlap * compute)
    return max(compute + cutting + exposed, job.input)


def local_step_seconds(
    job: Job, network: Network, n: int, *, local_steps: int, state: float, slow: float = 1.0
) -> float:
    """Returns the mean seconds of a local step, with one reduction of `state` bytes after so many.

    What differs from step to step averages out within a round; a device that is always slow is waited for as ever.
    """
    compute = job.compute * max(slowest(n, job.spread / math.sqrt(local_steps)), slow)
    met = reduction(dataclasses.replace(job, gradients=state), network, n) / local_steps
    return max(compute + met, job.input)


def asynchronous_rate(job: Job, servers: Servers, n: int, *, slow: float = 1.0) -> float:
    """Returns the steps a second of n workers that don't wait for each other, until the servers have no more time."""
    alone = 1 / (max(job.compute, job.input) + servers.exchange)
    wanted = (n - 1 + 1 / slow) * alone
    return min(wanted, 1 / servers.locked) if servers.locked else wanted


def efficiency(job: Job, seconds: float) -> float:
    """Returns the part of n devices' computing that is left of it where a step takes `seconds`."""
    return job.compute / seconds
