"""Muon and NorMuon."""

from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from core.arguments import check_choice, check_fraction, check_positive, check_rate, check_size
from core.optimizers.adam import adamw
from core.optimizers.chain import chain
from core.optimizers.decay import Decay
from core.optimizers.groups import partition
from core.optimizers.moments import averages, look_ahead, zeros
from core.optimizers.orthogonalise import NEWTON_SCHULZ, POLAR_EXPRESS, coefficients, cost, orthogonalise_all
from core.optimizers.paths import matching
from core.optimizers.rates import rate_at
from core.optimizers.rule import rule, scale_by_rate
from core.optimizers.scheduled import schedulable
from core.optimizers.sharing import ask, in_shares
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform


@gin.configurable
@schedulable
def muon(
    learning_rate: float | Schedule,
    *,
    momentum: float | Schedule = 0.95,
    nesterov: bool = True,
    polynomials: str = NEWTON_SCHULZ,
    newton_schulz_steps: int = 5,
    neuron_beta: float | Schedule | None = None,
    kernels: bool = False,
    weight_decay: float | Schedule = 0.0,
    epsilon: float = 1e-8,
    other: Transform | None = None,
    other_for: Sequence[str] = (),
    slots: str = "float32",
    sharded: bool = False,
) -> Transform:
    """Follows Jordan et al. (2024), "Muon: an optimizer for hidden layers in neural networks". Decay reads parameters.

    Muon trains the matrices (parameters of rank 2). With `kernels`, it also trains parameters of higher rank, such as
    convolution kernels [height, width, in, out], as matrices [height · width · in, out]. `other` trains the rest, and
    parameters that match a pattern of `other_for`, such as embeddings and the last layer. `other` is AdamW at the same
    rate by default, with the same `slots`; another `other` has its own.

    As in Optax, the Nesterov direction uses Nadam's bias corrections. Jordan's code and PyTorch use none, so the first
    updates differ. The update of a matrix [in, out] is scaled by √max(1, out/in). `polynomials` is "newton_schulz" or
    "polar_express" (Amsel et al. 2025), each of `newton_schulz_steps` steps.

    `neuron_beta`, such as 0.95, follows Li et al. (2025), "NorMuon": the orthogonal direction o of each output is
    divided by √v + ε, where v is a moving average of the mean of o² over inputs. The matrix keeps its norm.

    With `sharded`, each replica orthogonalises a part of the matrices, and gets the others from their replicas.
    """
    check_rate(weight_decay=weight_decay)
    if not callable(momentum):
        check_fraction(momentum=momentum)
    if neuron_beta is not None and not callable(neuron_beta):
        check_fraction(neuron_beta=neuron_beta)
    check_positive(epsilon=epsilon)
    check_size(newton_schulz_steps=newton_schulz_steps)
    check_choice("polynomials", polynomials, (NEWTON_SCHULZ, POLAR_EXPRESS))
    decay, steps = Decay(weight_decay), coefficients(polynomials, newton_schulz_steps)

    def label(params: Mapping[str, Any]) -> dict[str, str]:
        left = matching(other_for, params, argument="other_for")

        def is_matrix(path: str) -> bool:
            rank = len(params[path].shape)
            return path not in left and (rank == 2 or (kernels and rank > 2))

        return {path: "matrix" if is_matrix(path) else "other" for path in params}

    def init(params: Tensors) -> State:
        if sharded:
            ask("muon")
        momenta = zeros("momentum")(params)
        if neuron_beta is None:
            return momenta
        return {**momenta, "v": {path: tf.zeros(p.shape[-1:], p.dtype) for path, p in params.items()}}

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        beta = rate_at(momentum, step)
        new: dict[str, dict[str, tf.Tensor]] = {"momentum": averages(state["momentum"], gradients, beta)}
        # The corrections of Nadam, as in Optax. Only their ratio matters: the norm is divided out.
        ahead = look_ahead(new["momentum"], gradients, step, beta) if nesterov else new["momentum"]
        matrices = {path: x if len(x.shape) == 2 else tf.reshape(x, [-1, x.shape[-1]]) for path, x in ahead.items()}
        directions = in_shares(
            lambda own: orthogonalise_all({path: matrices[path] for path in own}, steps, epsilon),
            {path: cost(x) for path, x in matrices.items()},
            matrices,
            sharded=sharded,
        )
        if neuron_beta is not None:
            means = {path: tf.reduce_mean(tf.square(o), 0) for path, o in directions.items()}
            new["v"] = averages(state["v"], means, rate_at(neuron_beta, step))
            directions = {path: normalised(o, new["v"][path], epsilon) for path, o in directions.items()}
        for path, g in gradients.items():
            rows, columns = directions[path].shape
            # A singular value of one then moves an output by as much as its input, for every shape.
            gained = max(1.0, columns / rows) ** 0.5 * directions[path]
            directions[path] = gained if len(g.shape) == 2 else tf.reshape(gained, g.shape)
        return scale_by_rate(decay.add(directions, params, step), rate), new

    matrices = rule("muon", init, scale, learning_rate, decay=decay, slots=slots, squares=("v",))
    return partition("muon", label, {"matrix": matrices, "other": chain(other or adamw(learning_rate, slots=slots))})


def normalised(o: tf.Tensor, v: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Divides each column of `o` [in, out] by √v + ε, v [out], and gives the result the norm of `o`."""
    even = o / (tf.sqrt(v) + epsilon)
    return even * (tf.norm(o) / (tf.norm(even) + epsilon))
