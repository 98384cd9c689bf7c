"""The engine and the trainers ask a strategy's `Backend`, and never the kind of a strategy."""

import re
from collections import Counter

import pytest

from tests.test_house import sources

# The packages of the kinds themselves, and the module of the option `local_steps`, which makes a backend of it.
MECHANISMS = ("core.parallel.", "trainers.settings")
ASKS = re.compile(
    r"isinstance\(.*\b(Mesh\w+|Served(Strategy|Exchange|Backend)|Local(Steps|Exchange)|\w+Strategy|Strategy)\b"
    r"|\"on_mesh\"\)|\.(on_mesh|remote|apart)\b(?! =)"
    r"|\blocal_steps\b.*(\bor 1\b|\bis (not )?None\b)|\b(if|not|or|and) (\w+\.)*local_steps\b"
    r"|\b(if|not|or|and|:=) (self|build|strategy)\.plan\b|type\(\w*strategy\) is\b"
    r"|selector.*\b(mirrored|multi_worker|tpu|mesh|parameter_server)\b"
)
# Allowed lines of a module, with the reason.
PERMITTED = {
    "core.distribution.exchange": (1, "replicas of several processes send one type at a time"),
    "core.tracing": (1, "a layer chooses a kernel by its variable, and knows no strategy"),
    "trainers.experiment": (1, "a mode refuses servers before it would meet them"),
    "trainers.launch.elastic": (1, "no strategy is made before the workers are counted"),
    "trainers.modes.resume_check": (1, "nothing is built there but by the runs that it compares"),
    "trainers.performance.diagnose.diagnosis": (1, "only `mirrored` can be given a part of its devices"),
    "trainers.dry_run.paper": (1, "a mesh on paper needs none of its devices, and so no strategy"),
}


def lines_that_ask(texts):
    """Returns the lines outside the mechanisms that test a strategy's kind, with their modules."""
    return [
        (name, line.strip())
        for name, text in sorted(texts.items())
        if not name.startswith(MECHANISMS)
        for line in text.splitlines()
        if ASKS.search(line.partition("  #")[0]) and not line.lstrip().startswith(("from ", "import ", "#"))
    ]


def test_lines_that_ask_for_a_kind_of_strategy_are_permitted_one_by_one():
    found = Counter(name for name, _ in lines_that_ask(sources()))
    assert found == {name: count for name, (count, _) in PERMITTED.items()}, lines_that_ask(sources())
    assert found.total() <= 8


@pytest.mark.parametrize(
    "line",
    [
        "if isinstance(strategy, MeshStrategy):",
        "by_any_thread = not isinstance(self.strategy, MeshStrategy | ServedStrategy)",
        "alone = self.exchange.replicas == 1 and not self.exchange.on_mesh",
        'return self.scale is not None and not hasattr(self.scale, "on_mesh")',
        "one = self.settings.local_steps or 1",
        "if exchange.apart or exchange.remote:",
        "if self.plan:",
        "self.mirrored = type(strategy) is tf.distribute.MirroredStrategy",
        'if strategy.selector.endswith("mesh"):',
    ],
)
def test_such_a_line_is_found(line):
    assert lines_that_ask({"core.engine.step": line, "core.parallel.mesh.scope": line}) == [("core.engine.step", line)]


def test_capabilities_are_not_lines_that_ask():
    assert (
        lines_that_ask({"core.engine.step": "if self.backend.not_compiled:\n    return not backend.steps_here"}) == []
    )
