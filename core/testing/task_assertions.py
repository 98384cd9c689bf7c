"""`assert_task`: all assertions that apply to a task, in one call."""

from collections.abc import Mapping, Sequence

from core.precision import Precision
from core.task import Batch, Task
from core.testing.causality import check_causal, follows
from core.testing.draws import check_draws
from core.testing.gradients import check_finite, check_gradients, check_updates
from core.testing.padding import check_padding, found_in
from core.testing.perturb import nudged
from core.testing.precision import check_float32, check_narrow_sums, check_precision
from core.testing.purity import check_pure
from core.testing.rows import check_rows
from core.testing.sums import check_sums
from core.testing.targets import check_features, check_squashed
from core.testing.traced import steps
from core.testing.trained import check_trained


def assert_task(
    task: Task,
    batch: Batch,
    *,
    causal: str | None = None,
    padding: str | None = None,
    except_for: Sequence[str] = (),
    precision: str | Mapping[str, str] = "float32",
    seed: int = 0,
) -> None:
    """Asserts everything that one batch allows to check, for all phases of `task` and its evaluation.

    `causal` names the feature of tokens: no loss may depend on later tokens. `padding` names the feature that marks
    padding. By default, both are found: next-token predictions, and features called `mask`, `weight`, `weights`,
    `lengths` or `length`.

    `except_for` has variables without a gradient, features that change no loss, and permitted types (`"bfloat16"`).
    `precision` is a value of `Trainer.precision`. With it, all other checks run in float32. The task must also compute
    in the dtypes of `precision`, without long sums, and with gradients that differ from float32's by roundings alone.
    """
    made = steps(task, batch, seed=seed)
    padding = padding or found_in(made[0].batch)
    for step in made:
        check_pure(step)
        check_finite(step, step())
        check_squashed(step)
        check_draws(step)
        check_float32(step, except_for)
    check_trained(task, made)
    with nudged(task):
        for step in made:
            check_rows(step)
            check_sums(step)
            for tokens in [name for name in [causal] if name and step.hangs_on(name)] if causal else follows(step):
                check_causal(step, tokens)
            if padding:
                check_padding(step, padding)
        check_features(made, except_for)
    for step in made if precision == "float32" else steps(task, batch, seed=seed, precision=Precision(precision)):
        check_precision(step)
        check_narrow_sums(step)
        check_gradients(step, except_for)
    check_updates(task, batch, seed=seed)
