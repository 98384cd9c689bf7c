"""`Optimizer`: the variables of an update rule, and `apply`, which updates the parameters.

>>> import tensorflow as tf
>>> from core.optimizers import Optimizer, adam, chain, clip_by_global_norm
>>> w = tf.Variable([1.0, 2.0])
>>> optimizer = Optimizer(chain(clip_by_global_norm(1.0), adam(0.1)), {"w": w})
>>> optimizer.apply({"w": tf.constant([3.0, 4.0])})
>>> sorted(optimizer.variables)
['adam/m/w', 'adam/v/w', 'step']
"""

import functools
import math
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from core.choice import one_of
from core.errors import did_you_mean
from core.optimizers.chain import chain
from core.optimizers.paths import nearest_path
from core.optimizers.sharing import is_sharing, noticing_sharded
from core.optimizers.slots import assign, make_slot, read, read_all, working_dtype
from core.optimizers.transform import Slots, Tensors, Transform, Variables
from core.tracing import computes_by_parts, in_xla, no_python_values

KERNELS_FROM = 2**16  # values in the largest variable; measured on CPUs, where sizes just below made no difference

_optimizers: weakref.WeakValueDictionary[int, "Optimizer"] = weakref.WeakValueDictionary()  # by id of the parameter


def optimizer_of(parameter: tf.Variable) -> "Optimizer | None":
    """Returns the optimizer that was made for `parameter`; if there are several, the last one that keeps averages."""
    return _optimizers.get(id(parameter))


class Optimizer:
    """Holds a transform's state for `parameters`, as variables. Make it in the parameters' strategy scope.

    Half-precision parameters are updated in float32: slots and the rule's arithmetic are float32.

    `statistics` are the moving averages of normalisation layers. A rule with `shares`, such as
    `ema`, needs statistics of the weights that evaluation reads: `average_statistics` computes them.
    """

    sharded: Sequence[str] = ()  # the rules whose work replicas share

    def __init__(
        self,
        transform: Transform,
        parameters: Mapping[str, tf.Variable],
        *,
        statistics: Mapping[str, tf.Variable] = {},
    ):
        if not parameters:
            raise ValueError(
                "`parameters` is empty, so there is nothing to update; give the variables by path: "
                "`net.parameters()`, or `{'w': w}`."
            )
        for path, variable in parameters.items():
            if not variable.dtype.is_floating:
                raise ValueError(
                    f"`parameters` has `{path}`, which is {variable.dtype.name}; an update would be rounded away: "
                    "leave it out, or make it a variable of floats."
                )
        self.transform = chain(transform)  # so that a slot has the same name alone and in a chain
        self.parameters = dict(parameters)
        with noticing_sharded() as sharded:
            initial = self.transform.init(read(self.parameters))
        self.sharded = sharded
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.slots = {
            slot: {
                path: make_slot(f"{slot}/{path}", value, self.parameters.get(path)) for path, value in values.items()
            }
            for slot, values in initial.items()
        }
        hidden = [slot for slot in self.slots if slot.endswith("/curvature")]
        if hidden and self.transform.curvature is None:
            raise ValueError(
                f"`{hidden[0].split('/')[-2]}` reads the loss's curvature, but `{hidden[0].split('/')[0]}` around it "
                "doesn't hand it on; use it alone, in a `chain`, or in `groups`."
            )
        shares = self.transform.shares(self.parameters) if self.transform.shares else {}
        nearest = {path: nearest_path(path, self.parameters) for path in statistics}
        self._shares = {path: shares[nearest[path]] for path in statistics if nearest[path] in shares}
        self.statistics = {path: statistics[path] for path in self._shares}
        self.averaged_statistics = {
            path: make_slot(f"statistics/{path}", variable.read_value(), variable)
            for path, variable in self.statistics.items()
        }
        for parameter in self.parameters.values():
            if self.transform.shadow or id(parameter) not in _optimizers:
                _optimizers[id(parameter)] = self

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """Returns the optimizer's variables by name: `step`, `RULE/SLOT/PARAMETER`, such as `adam/m/net/w`.

        Averages of statistics are named `statistics/PATH`.
        """
        slots = {
            f"{slot}/{path}".rstrip("/"): variable
            for slot, values in self.slots.items()
            for path, variable in values.items()
        }
        statistics = {f"statistics/{path}": variable for path, variable in self.averaged_statistics.items()}
        return {"step": self.step, **slots, **statistics}

    def restart(self) -> None:
        """Resets the count of updates to zero and all slots to their initial values for the current parameters."""
        self.step.assign(0)
        assign(self.slots, self.transform.init(read(self.parameters)))
        self.restart_statistics()

    def restart_statistics(self) -> None:
        """Sets the averages of statistics to the current values of the statistics."""
        for path, variable in self.averaged_statistics.items():
            variable.assign(self.statistics[path].read_value())

    def apply(
        self,
        gradients: Tensors,
        *,
        value: tf.Tensor | None = None,
        apply_if: tf.Tensor | None = None,
        fused: bool = True,
    ) -> None:
        """Applies one update. If `apply_if` (a scalar bool) is false, every variable keeps its bits.

        The square of a gradient beyond 1e19 is infinite. With Adam, the parameter then becomes NaN in this update or
        the next. With Adagrad and AMSGrad, it may never change again. The engine ends such a run. In a custom loop,
        put `clip_by_global_norm` before the rule, which clips any finite gradient.

        `fused=False` avoids TensorFlow's kernels. Code that XLA compiles never uses them: XLA fuses the pure rule.
        """
        gradients = {path: self._gradient(path, gradients) for path in self.parameters}
        with no_python_values("a schedule or rule of the optimizer"):
            apply_in_place(
                self.transform,
                gradients,
                self.slots,
                self.parameters,
                step=self.step.read_value(),
                value=value,
                apply_if=apply_if,
                fused=fused,
                collective=bool(self.sharded) and is_sharing(),
            )
        self.step.assign_add(1 if apply_if is None else tf.cast(apply_if, tf.int64))

    @property
    def curvature_due(self) -> Callable[[], tf.Tensor] | None:
        """Returns a function that says whether the next update takes a curvature estimate; None if none does."""
        curvature = self.transform.curvature
        return None if curvature is None else lambda: tf.equal(self.step.read_value() % curvature.every, 0)

    def take_curvature(self, estimate: Tensors, *, apply_if: tf.Tensor | None = None) -> None:
        """Gives the rule an `estimate` [as the parameters] of the Hessian's diagonal, before `apply`, if it is due."""
        curvature = self.transform.curvature
        assert curvature
        due = tf.equal(self.step.read_value() % curvature.every, 0)

        wide = {path: tf.cast(estimate[path], working_dtype(v)) for path, v in self.parameters.items()}

        def write() -> None:
            state = read_all(self.slots)
            for slot, values in curvature.take(wide, state, self.step.read_value()).items():
                for path, x in values.items():
                    if x is not state[slot][path]:
                        self.slots[slot][path].assign(x)

        tf.cond(due if apply_if is None else due & apply_if, write, lambda: None)

    def average_statistics(self, moments: Mapping[Any, tf.Tensor], *, apply_if: tf.Tensor | None = None) -> None:
        """Adds `moments`, `{variable.ref(): value}` of the last update's batch, to the averages, as for the weights.

        Call this method after `apply` and after the statistics were updated; statistics without moments are copied.
        """
        before = self.step.read_value() - 1
        for path, variable in self.averaged_statistics.items():
            statistic, old = self.statistics[path], variable.read_value()
            moment = moments.get(statistic.ref())
            if moment is None:
                new = statistic.read_value()
            else:
                # No batch was seen with the initial weights, so the first batch stands for them.
                share = tf.where(before == 0, 1.0, self._shares[path](before))
                new = old + tf.cast(share, old.dtype) * (moment - old)
            variable.assign(new if apply_if is None else one_of(apply_if, new, old))

    def shadow(self) -> Tensors | None:
        """Returns `{path: value}` for evaluation and export; `None` if these read the parameters themselves.

        The values are, for example, those of an `ema`, or the slow weights of `lookahead`.
        """
        if self.transform.shadow is None:
            return None
        return self.transform.shadow(read_all(self.slots), read(self.parameters), self.step.read_value())

    def averages(self) -> dict[str, str | None]:
        """Returns `{path: name in variables}` for the values of `shadow()`; `None` for a value in no variable.

        Parameters that evaluation reads directly are omitted.
        """
        if self.transform.shadow is None:
            return {}
        with tf.Graph().as_default():  # compares tensors by identity alone, without values
            params = {path: _stand_in(v) for path, v in self.parameters.items()}
            state = {slot: {path: _stand_in(v) for path, v in values.items()} for slot, values in self.slots.items()}
            read = self.transform.shadow(state, params, tf.zeros([], tf.int64))
            places = {id(x): f"{slot}/{path}" for slot, values in state.items() for path, x in values.items()}
        return {path: places.get(id(x)) for path, x in read.items() if x is not params[path]}

    def _gradient(self, path: str, gradients: Tensors) -> tf.Tensor:
        gradient = gradients.get(path)
        if gradient is None:
            near = "" if path in gradients else did_you_mean(path, gradients)
            raise ValueError(
                f"`gradients` has none for the parameter `{path}`.{near} Give one for each of the optimizer's "
                "parameters; does the loss depend on this one?"
            )
        # Duplicate indices of a sparse gradient are summed here, before any norm or rule sees them.
        gradient = tf.convert_to_tensor(gradient)
        if not gradient.dtype.is_floating:
            raise ValueError(
                f"`gradients` has {gradient.dtype.name} for the parameter `{path}`; gradients are floats: "
                "does the loss round, or count? If they are meant, `tf.cast(gradient, tf.float32)`."
            )
        return tf.cast(gradient, working_dtype(self.parameters[path]))


def _stand_in(variable: tf.Variable) -> tf.Tensor:
    """Returns a graph placeholder with the shape of `variable`, and the dtype in which rules receive it."""
    return tf.raw_ops.Placeholder(dtype=working_dtype(variable), shape=variable.shape)


def apply_in_place(
    transform: Transform,
    gradients: Tensors,
    slots: Slots,
    params: Variables,
    *,
    step: tf.Tensor,
    value: tf.Tensor | None = None,
    apply_if: tf.Tensor | None = None,
    fused: bool = True,
    collective: bool = False,
) -> None:
    """Updates `params` and `slots` in place, with `transform.fused` if that is faster, else with `transform.update`.

    A `collective` update sends tensors between replicas, which is impossible within a condition: only its writes are.
    """
    if apply_if is not None and not collective:
        # A condition costs a tenth of a small update; selecting every value doubles its time. So use a condition with a
        # kernel, and under XLA, which otherwise copies all slots first.
        write = functools.partial(
            apply_in_place, transform, gradients, slots, params, step=step, value=value, fused=fused
        )
        tf.cond(apply_if, write, lambda: None)
        return
    if fused and not collective and not in_xla() and transform.fused and _suits_kernels(params.values()):
        transform.fused(gradients, slots, params, step=step, value=value)
        return
    state, before = read_all(slots), read(params)
    updates, new_state = transform.update(gradients, state, before, step=step, value=value)

    def write_all() -> None:
        for path, variable in params.items():
            variable.assign_add(tf.cast(updates[path], variable.dtype))
        assign(slots, new_state)

    if apply_if is None:
        write_all()
    else:
        tf.cond(apply_if, write_all, lambda: None)


def _suits_kernels(variables: Collection[tf.Variable]) -> bool:
    """Says whether TensorFlow's kernels are faster: always on GPUs; on CPUs, 2.5x for large variables only."""
    if any(computes_by_parts(variable) for variable in variables):
        return False  # given a shard and a whole gradient, or a slot sharded otherwise, a kernel aborts the process
    if not all(variable.dtype in (tf.float32, tf.float64) for variable in variables):
        return False
    if any("GPU" in variable.device for variable in variables):
        return True  # on a GPU, launching each small operation takes longer than running it
    return max((math.prod(v.shape) for v in variables), default=0) >= KERNELS_FROM
