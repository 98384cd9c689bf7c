"""Tables and pictures of the model's predictions for `benchmarks/notes/scaling.md`."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import stragglers
from benchmarks.chart import Panel, svg
from benchmarks.pages import table
from benchmarks.simulate import here, published, straggling
from benchmarks.simulate.check import Check
from benchmarks.simulate.measure import Measured, Size
from benchmarks.simulate.model import (
    Job,
    Network,
    Servers,
    asynchronous_rate,
    efficiency,
    local_step_seconds,
    step_seconds,
)

COUNTS = tuple(2**i for i in range(11))
SHOWN = (2, 8, 32, 128, 1024)
LOCAL_STEPS = 20
DRAWN = Size(30, 0)
SERVERS = 16  # of the asynchronous line for GPUs, with one link each

Lines = Mapping[str, Sequence[tuple[float, float]]]


def tables(measured: Measured) -> dict[str, str]:
    """Returns all tables by the names that pages use."""
    return {
        "machine": _machine(measured),
        "constants": _constants(measured),
        "errors": _errors(measured),
        "published": _published(),
        "stragglers": stragglers.rows_of(measured["stragglers"]),
        "drawn here": _drawn(_here(measured)),
        "drawn gpus": _drawn(_gpus()),
    }


def pictures(measured: Measured) -> dict[str, str]:
    """Returns all pictures by file name."""
    panels = [
        Panel("This machine's processes, each on a core of its own", _here(measured), COUNTS[::2], "replicas"),
        Panel("P100 in machines of 8, 25 Gbit/s; V100 for the mesh", _gpus(), COUNTS[::2], "GPUs"),
    ]
    return {
        "scaling.svg": svg(panels, upright="part of the devices' computing that is left"),
        "stragglers.svg": stragglers.picture(measured["stragglers"]),
    }


def lines(job: Job, network: Network, servers: Servers, *, state: float) -> Lines:
    """Returns the efficiency at each number of replicas, by strategy."""
    local = f"local steps, {LOCAL_STEPS} a round"
    found: dict[str, list[tuple[float, float]]] = {"replicas": [], local: [], "asynchronous": []}
    for n in COUNTS:
        in_rounds = local_step_seconds(job, network, n, local_steps=LOCAL_STEPS, state=state)
        found["replicas"].append((n, efficiency(job, step_seconds(job, network, n))))
        found[local].append((n, efficiency(job, in_rounds)))
        found["asynchronous"].append((n, efficiency(job, n / asynchronous_rate(job, servers, n))))
    return found


def _here(measured: Measured) -> Lines:
    job = here.job(measured, DRAWN)
    drawn = lines(job, here.fitted(measured).network, here.servers(measured), state=job.gradients)
    cut, network = here.cut(measured, DRAWN), here.mesh_network(measured)
    mesh = [(n, efficiency(cut, step_seconds(cut, network, n))) for n in COUNTS if n >= cut.cut]
    return {**drawn, "mesh: Work's matrix, cut over 2": mesh}


def _gpus() -> Lines:
    p100 = published.machine(published.P100)
    rate = published.P100["ResNet-50", 64][0]
    job = p100.job("ResNet-50", 64, rate, overlap=published.OVERLAP)
    network = p100.network(gigabits=25)
    exchange = 2 * network.between.seconds(job.gradients)
    servers = Servers(exchange, exchange / 2 / SERVERS)
    mesh = [
        (n, efficiency(published.GPT, step_seconds(published.GPT, published.DGX2, n)))
        for n in COUNTS
        if n >= published.GPT.cut
    ]
    return {**lines(job, network, servers, state=2 * job.gradients), "mesh: GPT of 8.7 billion, cut over 8": mesh}


def _machine(measured: Measured) -> str:
    rows, note = [], ""
    for what, m in (("the fit", measured["machine"]), ("slow workers", measured["stragglers"]["machine"])):
        loads = f"{m['load_before']:g}, {m['highest_load']:g}"
        rows.append([what, m["processor"], str(m["cores"]), m["tensorflow"], m["python"], loads])
        if m["highest_load"] > 2 * m["cores"]:
            note = "\nMeasured while other work used the same cores, which causes most of the errors below.\n"
    return table(["measured for", "processor", "cores", "TensorFlow", "Python", "load before, highest"], rows) + note


def _constants(measured: Measured) -> str:
    fitted = here.fitted(measured)
    p100, k80 = published.machine(published.P100), published.machine(published.K80)
    rows = [
        _link("two processes here", fitted.link.latency, fitted.link.bandwidth, fitted.spread),
        _link("8 P100 of a DGX-1", p100.link.latency, p100.link.bandwidth, p100.spread),
        _link("8 K80 of a p2.8xlarge", k80.link.latency, k80.link.bandwidth, k80.spread),
    ]
    return table(["what", "latency of a message", "bandwidth", "spread of steps"], rows)


def _link(what: str, latency: float, bandwidth: float, spread: float) -> list[str]:
    gigabytes = f"{bandwidth / 1e9:.3g} GB/s" if bandwidth < 1e12 else "none to be found"
    return [what, f"{1e3 * latency:.3g} ms", gigabytes, f"{spread:.1%}"]


def _errors(measured: Measured) -> str:
    found = [*here.checks(measured), *_of_stragglers(measured)]
    rows = [[x.what, _figure(x.known), _figure(x.model), f"{x.error:+.0%}"] for x in found]
    return table(["what", "measured", "model", "error"], [*rows, _summary([x.error for x in found])])


def _of_stragglers(measured: Measured) -> Iterator[Check]:
    return straggling.checks(measured["stragglers"], here.fitted(measured), here.servers(measured))


def _figure(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def _published() -> str:
    found = published.checks()
    rows = [[x.what, x.source, f"{x.known:.3f}", f"{x.model:.3f}", f"{x.error:+.1%}"] for x in found]
    summary = _summary([x.error for x in found])
    return table(["what", "source", "published", "model", "error"], [*rows, [summary[0], "", *summary[1:]]])


def _summary(errors: Sequence[float]) -> list[str]:
    sizes = [abs(error) for error in errors]
    return ["median and worst error", "", "", f"{statistics.median(sizes):.0%}, {max(sizes):.0%}"]


def _drawn(drawn: Lines) -> str:
    rows = [
        [name, *(f"{dict(points)[n]:.2f}" if n in dict(points) else "" for n in SHOWN)]
        for name, points in drawn.items()
    ]
    return table(["", *(f"{n:,}" for n in SHOWN)], rows)
