"""Policies for bad steps: steps that aren't finite, or whose gradient is a spike."""

import dataclasses
import math
from collections.abc import Mapping

from core.distribution import Backend
from core.engine import NOT_FINITE, SPIKE, Assembly, Skipping, TrainStep
from core.errors import ConfigurationError, shown

RAISE, SKIP, ROLLBACK = "raise", "skip", "rollback"
MAX_SKIPS = MAX_ROLLBACKS = 3
SPIKE_FACTOR = 10.0  # relative to the largest recent norm: docs/checkpoints.md


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policies:
    """The policies in `Trainer.*`; `None` means not given."""

    on_nonfinite: str
    on_spike: str | None
    max_skips: int | None
    max_rollbacks: int | None
    spike_factor: float | None

    def check(self) -> None:
        """Raises a `ConfigurationError` for an unknown policy, or a setting without effect."""
        _check_choice("on_nonfinite", self.on_nonfinite, [RAISE, SKIP, ROLLBACK])
        if self.on_spike is not None:
            _check_choice("on_spike", self.on_spike, [SKIP, ROLLBACK])
        _check_has_effect("max_skips", self.max_skips, when=self.skips, else_bind=SKIP)
        _check_has_effect("max_rollbacks", self.max_rollbacks, when=self.rolls_back, else_bind=ROLLBACK)
        factor = self.spike_factor
        if factor is None:
            return
        if not (isinstance(factor, float | int) and not isinstance(factor, bool) and 1.0 < factor < math.inf):
            raise ConfigurationError(
                f"`Trainer.spike_factor` is {shown(factor)}; a gradient of this many times the largest recent norm "
                "is a spike: give a number above 1, such as 10.0."
            )
        if self.on_spike is None:
            raise ConfigurationError(
                "`Trainer.spike_factor` has no effect without `Trainer.on_spike`: give both (`Trainer.on_spike = "
                "'skip'`), or remove it."
            )

    @property
    def by_kind(self) -> Mapping[str, str | None]:
        """Returns {kind of bad step: policy}."""
        return {NOT_FINITE: self.on_nonfinite, SPIKE: self.on_spike}

    @property
    def skips(self) -> bool:
        """Returns whether steps may be skipped."""
        return SKIP in self.by_kind.values()

    @property
    def rolls_back(self) -> bool:
        """Returns whether the run may return to a checkpoint."""
        return ROLLBACK in self.by_kind.values()

    def skipping(self, train_step: TrainStep, assembly: Assembly) -> Skipping | None:
        """Returns the `Skipping` that takes steps if the policies skip steps or detect spikes; otherwise None."""
        self._check_backend(train_step.backend)
        if not (self.skips or self.on_spike):
            return None
        return Skipping(
            train_step,
            assembly,
            skips=[kind for kind, policy in self.by_kind.items() if policy == SKIP],
            max_skips=self.max_skips or MAX_SKIPS,
            spike_factor=(self.spike_factor or SPIKE_FACTOR) if self.on_spike else None,
        )

    def _check_backend(self, backend: Backend) -> None:
        skipping = ["`Trainer.on_spike`"] if self.on_spike else []
        skipping += ["`Trainer.on_nonfinite = 'skip'`"] if self.on_nonfinite == SKIP else []
        rolling_back = ["`Trainer.on_nonfinite = 'rollback'`"] if self.on_nonfinite == ROLLBACK else []
        backend.check_policies(skipping, rolling_back)


def _check_choice(name: str, value: object, choices: list[str]) -> None:
    if value not in choices:
        raise ConfigurationError(f"`Trainer.{name}` is {shown(value)}; give one of {', '.join(map(repr, choices))}.")


def _check_has_effect(name: str, value: int | None, *, when: bool, else_bind: str) -> None:
    if value is not None and not when:
        raise ConfigurationError(
            f"`Trainer.{name}` has no effect unless a policy is '{else_bind}': give `Trainer.on_nonfinite = "
            f"'{else_bind}'` too, or remove it."
        )
