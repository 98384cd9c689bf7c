"""Errors name every numeric parameter of a configurable that is given infinity."""

import inspect
import math
from pathlib import Path

import gin
import numpy as np
import pytest

from core.data.arrays import ArraySource
from core.errors import ConfigurationError, DataError
from core.losses import adversarial
from core.optimizers import sgd
from core.random import Rng
from trainers import configurables, hooks, settings  # noqa: F401  # which make themselves known to gin
from trainers.gin_audit import registry

hooks.register()
OURS = ("core.", "models.", "trainers.")
# Parameters without numbers: a function that returns numbers.
NO_NUMBERS = {("Translations", "judge")}
# Seconds to wait for other machines, which are contacted before any other check.
ELSEWHERE = {("multi_worker", "meeting_deadline"), ("multi_worker", "peer_timeout")}
TWO = ArraySource({"x": np.arange(2)}, name="two")
EXAMPLES = {
    "path": str(Path(inspect.getfile(Rng)).parent / "data" / "embedded" / "digits.npz"),
    "rng": Rng.from_seed(0),
    "inner": sgd(0.1),
    "optimizer": sgd(0.1),
    "g_optimizer": sgd(0.1),
    "d_optimizer": sgd(0.1),
    "networks": lambda **_: (None, None),
    "game": adversarial.non_saturating(),
    "image_shape": [256, 256, 3],
    "channels": [4, 4],
    "sizes": [4, 4],
    "vocabulary": 4,
    "context": 4,
    "num_layers": 1,
    "num_heads": 2,
    "size": 4,
    "levels": 2,
    "rates": [0.1, 0.2],
    "boundaries": [3],
    "warmup_steps": 2,
    "decay_steps": 3,
    "total_steps": 10,
    "steps": 10,
    "global_batch_size": 4,
    "period": 5,
    "files": str(Path(inspect.getfile(Rng))),
    "sources": [TWO, TWO],
    "source": TWO,
    "figure": "min loss",
    "patience": 2,
}
# The form of a number where a parameter takes more than one.
GIVEN = {
    "rates": lambda number: [0.1, number],
    "weights": lambda number: [0.1, number],
    "fill": lambda number: {"x": number},
    "area": lambda number: (0.02, number),
    "aspect": lambda number: (0.3, number),
    "section_deadlines": lambda number: {"step": number},
}


def floats():
    """Yields all numeric parameters, with the others that their configurable needs."""
    for selector, configurable in sorted(registry.configurables().items()):
        if not selector.startswith(OURS):
            continue
        function, name = configurable.wrapped, registry.short(selector)
        parameters = inspect.signature(function).parameters
        needed = [n for n, p in parameters.items() if p.default in (inspect.Parameter.empty, gin.REQUIRED)]
        for parameter, declared in parameters.items():
            number = "float" in str(declared.annotation) and "bfloat" not in str(declared.annotation)
            if number and (name, parameter) not in NO_NUMBERS | ELSEWHERE:
                yield pytest.param(function, parameter, needed, id=f"{name}.{parameter}")


@pytest.mark.parametrize(("function", "parameter", "needed"), floats())
def test_infinity_is_refused_by_name(function, parameter, needed):
    arguments = {name: EXAMPLES.get(name, 0.1) for name in needed}
    for value in (math.inf, -math.inf, math.nan):
        given = GIVEN.get(parameter, lambda number: number)(value)
        with pytest.raises((ValueError, ConfigurationError, DataError)) as error:
            function(**{**arguments, parameter: given})
        text = str(error.value)
        assert parameter in text.split("` is ", maxsplit=1)[0]
        assert repr(value) in text


def test_every_configurable_is_asked():
    names = {parameters.id for parameters in floats()}
    assert {"sgd.learning_rate", "Gan.r1", "npz.scale", "cosine.final_rate", "SimClr.temperature"} < names
    assert len(names) > 100
