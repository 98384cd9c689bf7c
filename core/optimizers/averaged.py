"""`averaged(module)`: the module with the averages that its optimizer keeps, for a loss that reads them.

def loss(self, batch, rng):
    target = tf.nn.softmax(averaged(self.net)(batch["x"]))  # mean teacher
    return Loss(losses.kl_divergence(self.net(batch["x"], rng), target))
"""

import tensorflow as tf

from core.errors import ConfigurationError
from core.module import M, named_variables, with_values
from core.optimizers.optimizer import optimizer_of


def averaged(module: M) -> M:
    """Returns a copy of `module` with the values that evaluation reads, through which no gradients flow.

    θ' ← αθ' + (1 − α)θ with `ema`: Tarvainen and Valpola (2017), "Mean teachers are better role models". In a step,
    θ' is the average before the step's update. Moving averages of `BatchNorm` are the averaged ones too. Call the copy
    without `rng` for a teacher without dropout. Parameters without an optimizer keep their values, so in a unit test,
    or in the `evaluate` of a task, the copy computes as `module` does.
    """
    variables = named_variables(module)
    optimizers = {id(x): x for v in variables.values() if (x := optimizer_of(v)) is not None}
    averages: dict[int, tf.Tensor] = {}
    for optimizer in optimizers.values():
        averages |= {id(optimizer.parameters[path]): x for path, x in (optimizer.shadow() or {}).items()}
        averages |= {id(optimizer.statistics[path]): v for path, v in optimizer.averaged_statistics.items()}
    if optimizers and not averages:
        raise ConfigurationError(
            f"a loss reads the averages of `{type(module).__name__}` (`averaged`), but its optimizer keeps none: add "
            "one to its chain, as `chain(adamw(1e-3), ema(0.999))`."
        )
    values = {path: averages.get(id(v), v) for path, v in variables.items() if v.dtype.is_floating}
    return with_values(
        module, {path: tf.stop_gradient(tf.cast(x, variables[path].dtype)) for path, x in values.items()}
    )
