"""Inspects functions outside of steps while they are traced: samples, texts, images, exports.

The rules of step functions hold: no side effects, and no variables outside the task.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from core.engine.draws import draws_twice, folds_for_nothing
from core.engine.hints import Python, fixed_draws
from core.engine.side_effects import paths_by_id, python_calls, refuse_side_effects, variables_of
from core.errors import ConfigurationError
from core.module import named_variables
from core.random import Rng, noticing_draws
from core.task import Task
from core.task.guards import no_new_variables
from core.tensorflow_private import get_default_graph
from core.tracing import no_python_values

T = TypeVar("T")


def inspected(
    task: Task,
    who: str,
    function: Callable[[], T],
    *,
    say: Callable[[str], object],
    rng: Rng | None = None,
    exported: bool = False,
) -> T:
    """Calls `function()`, which uses `task` in a `tf.function`, and returns its result.

    Messages call the function `who`. Its first side effect raises a `ConfigurationError`, and `say` is called with each
    warning. `rng` is the `Rng` that the task got, if any. An `exported` function may not call Python, because other
    processes lack that code.
    """
    graph: Any = get_default_graph()
    before = len(graph.get_operations())  # a source may have computed in this graph, too
    held = {**{id(v): v.name for v in variables_of(graph)}, **paths_by_id(named_variables(task))}
    python = Python(task)
    with no_new_variables(who), no_python_values(who), noticing_draws() as drawn:
        made = function()
    operations = graph.get_operations()[before:]
    refuse_side_effects(operations, graph, who, held, has_rng=rng is not None, is_step=False)
    calls = list(python_calls(operations, who))
    if exported and calls:
        raise ConfigurationError(
            f"{calls[0]}. An export can't hold Python: compute with TensorFlow's functions, or make the value an input "
            "of its `Served`."
        )
    remarks = [*calls, *draws_twice(drawn, who, __file__), *folds_for_nothing(drawn, who)]
    remarks += fixed_draws(drawn, rng.seed, who, is_step=False) if rng is not None else ()
    for text in (*remarks, *python.changed(who, is_step=False)):
        say(text)
    return made
