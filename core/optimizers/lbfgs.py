"""L-BFGS: a quasi-Newton method with limited memory, for gradients of full batches."""

import gin
import tensorflow as tf

from core.arguments import check_size
from core.choice import one_of
from core.optimizers.rates import as_dtype
from core.optimizers.rule import rule
from core.optimizers.transform import Rate, Schedule, State, Tensors, Transform

_LEAST_COSINE = 1e-6  # between s and y; below this, rounding in float32 decides the sign of their inner product


@gin.configurable
def lbfgs(learning_rate: float | Schedule, *, memory_size: int = 10) -> Transform:
    """Follows Liu and Nocedal (1989), "On the limited memory BFGS method for large scale optimization".

    Steps θ ← θ - α H g, without a line search: the rate α says how far. The two-loop recursion computes H g from the
    last m = `memory_size` differences of successive parameters s and gradients y, each [m, n] for n weights:

        q = g;   for i = newest ... oldest:  a_i = ⟨s_i, q⟩ / ⟨s_i, y_i⟩,  q ← q - a_i y_i
        q ← γ q, γ = ⟨s, y⟩ / ⟨y, y⟩ of the newest pair, or min(1, 1 / ‖g‖) before the first
        for i = oldest ... newest:  q ← q + (a_i - ⟨y_i, q⟩ / ⟨s_i, y_i⟩) s_i

    A pair without positive curvature ⟨s, y⟩ isn't stored, so that H stays positive. Give the gradient of a full batch:
    differences of small batches are mostly noise. H covers all parameters of this rule: within `groups`, each group
    has its own H. Updates depend on parameters and step.
    """
    check_size(memory_size=memory_size)

    def init(params: Tensors) -> State:
        x = _flat(params)
        empty = tf.zeros([memory_size, *x.shape], x.dtype)
        return {"params": {"": x}, "gradients": {"": tf.zeros_like(x)}, "s": {"": empty}, "y": {"": empty}}

    def scale(gradients: Tensors, state: State, params: Tensors, step: tf.Tensor, rate: Rate) -> tuple[Tensors, State]:
        x, g = _flat(params), _flat({path: gradients[path] for path in params})
        s, y = x - state["params"][""], g - state["gradients"][""]
        curved = _dot(s, y) > _LEAST_COSINE * tf.sqrt(_dot(s, s) * _dot(y, y))
        stored = curved & (step > 0)
        all_s, all_y = (
            one_of(stored, tf.concat([state[slot][""][1:], tf.expand_dims(newest, 0)], 0), state[slot][""])
            for slot, newest in (("s", s), ("y", y))
        )
        direction = two_loops(g, all_s, all_y)
        new = {"params": {"": x}, "gradients": {"": g}, "s": {"": all_s}, "y": {"": all_y}}
        return _unflat(as_dtype(-rate, direction) * direction, params), new

    return rule("lbfgs", init, scale, learning_rate)


def two_loops(g: tf.Tensor, s: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns H g [n] for the pairs in the rows of `s` and `y` [m, n], oldest first; rows of zeros don't count."""
    curvatures = tf.reduce_sum(s * y, 1)
    # Averages over replicas (local steps) may mix pairs, so a curvature may still be zero or negative.
    inverse = tf.math.divide_no_nan(tf.cast(curvatures > 0.0, g.dtype), curvatures)
    q, a = g, {}
    for i in reversed(range(s.shape[0])):
        a[i] = inverse[i] * _dot(s[i], q)
        q -= a[i] * y[i]
    first = tf.minimum(tf.math.divide_no_nan(tf.ones([], g.dtype), tf.norm(g)), 1.0)
    gamma = tf.math.divide_no_nan(curvatures[-1], _dot(y[-1], y[-1]))
    q *= tf.where(gamma > 0.0, gamma, first)
    for i in range(s.shape[0]):
        q += (a[i] - inverse[i] * _dot(y[i], q)) * s[i]
    return q


def _dot(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x * y)


def _flat(tensors: Tensors) -> tf.Tensor:
    """Returns all values as one vector [n], in the widest dtype."""
    wide = max((x.dtype for x in tensors.values()), key=lambda dtype: dtype.size)
    return tf.concat([tf.reshape(tf.cast(x, wide), [-1]) for x in tensors.values()], 0)


def _unflat(vector: tf.Tensor, like: Tensors) -> dict[str, tf.Tensor]:
    """Returns the parts of `vector` with the shapes and dtypes of `like`."""
    parts, start = {}, 0
    for path, x in like.items():
        end = start + int(x.shape.num_elements())
        parts[path] = tf.cast(tf.reshape(vector[start:end], x.shape), x.dtype)  # DTensor fails on `tf.split`
        start = end
    return parts
