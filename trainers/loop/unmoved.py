"""Says once of parameters of half precision that the first steps leave as they were: updates that are rounded away.

Where there are none of half precision nothing is read, and the steps themselves compute nothing for it.
"""

from collections.abc import Callable, Mapping

from core.distribution import Backend
from core.optimizers import Optimizer


class Unmoved:
    """Remembers what such parameters begin with until their phase has taken a step."""

    def __init__(self, optimizers: Mapping[str, Optimizer], backend: Backend):
        self._waiting = dict(optimizers) if backend.reads_are_local else {}
        self._values = {
            (phase, path): variable.numpy()
            for phase, optimizer in self._waiting.items()
            for path, variable in optimizer.parameters.items()
            if variable.dtype.is_floating and variable.dtype.size == 2
        }
        self._steps = {phase: int(self._waiting[phase].step.numpy()) for phase, _ in self._values}

    def tell(self, say: Callable[[str], object]) -> None:
        """Compares those whose phases have taken steps since, and forgets them."""
        for phase, before in list(self._steps.items()):
            optimizer = self._waiting[phase]
            if taken := int(optimizer.step.numpy()) - before:
                del self._steps[phase]
                held = [path for name, path in self._values if name == phase]
                values = {path: self._values.pop((phase, path)) for path in held}
                still = [path for path, x in values.items() if (optimizer.parameters[path].numpy() == x).all()]
                if still:
                    self._say(phase, still, len(held), optimizer.parameters[still[0]].dtype.name, taken, say)

    def _say(
        self, phase: str, still: list[str], count: int, dtype: str, taken: int, say: Callable[[str], object]
    ) -> None:
        others = f" and {len(still) - 1} more of its {count} parameters of half precision" if len(still) > 1 else ""
        say(
            f"phase `{phase}` has left `{still[0]}`{others} as it was, in {taken} step{'s' if taken > 1 else ''}: it "
            f"is {dtype}, and an update of less than half its last place is rounded away. Make the variable float32 "
            "(layers compute in the dtype of their input all the same), or take a larger learning rate."
        )
