"""LoRA: trains low-rank changes of matrices, and keeps the matrices as they are (Hu et al., 2021)."""

import functools
from collections.abc import Sequence
from typing import TypeVar

import gin
import tensorflow as tf

from core import initializers
from core.arguments import check_positive, check_size
from core.errors import ConfigurationError
from core.module import Module, copied, named_variables
from core.random import Rng
from core.tensorflow_private import flattened
from core.weights.fit import matching

N = TypeVar("N", bound=tf.Module)


@gin.configurable
class Lora(Module):
    """Adds `alpha / rank * a @ b` to each matrix of `network` whose path matches one of `patterns`.

    `a` begins random and `b` zero, so the network computes the same at first. A kernel with more than two axes counts
    as a matrix with one column per output. An update that trains this module alone leaves the network as it is:

        >>> from core.layers import Linear, Sequential
        >>> net = Sequential([Linear(8, 8, rng=Rng.from_seed(i)) for i in range(2)])
        >>> lora = Lora(net, patterns=["layers/1/w"], rank=2, rng=Rng.from_seed(2))
        >>> list(lora.parameters())
        ['changes/layers/1/w/a', 'changes/layers/1/w/b']
        >>> changed, x = lora(net), tf.ones([1, 8])
        >>> bool(tf.reduce_all(changed(x) == net(x)))
        True
    """

    def __init__(
        self,
        network: tf.Module,
        *,
        rng: Rng,
        patterns: Sequence[str] = gin.REQUIRED,
        rank: int = gin.REQUIRED,
        alpha: float = 16.0,
    ):
        super().__init__()
        check_positive(alpha=alpha)
        check_size(rank=rank)
        variables = named_variables(network)
        hits = matching(patterns, variables, argument="Lora.patterns")
        self.paths = [path for path in variables if any(path in found for found in hits.values())]
        for path in self.paths:
            _check_matrix(path, variables[path], rank)
        self.changes = {path: _Change(variables[path], rank, rng.fold(path)) for path in self.paths}
        self.scale, self.merged = alpha / rank, False
        self._network = functools.partial(lambda kept: kept, network)  # a function, so that its variables aren't ours

    def __call__(self, network: N) -> N:
        """Returns a copy of `network` that computes with the changed matrices. `network` may be a copy itself."""
        if self.merged:
            return network
        leaves = dict(_leaves(network))
        copy: N = copied(network, {id(leaves[path]): self._changed(path, leaves[path]) for path in self.paths})
        return copy

    def merge(self) -> None:
        """Assigns the changed matrices to the network for good. Afterwards calls return their network itself."""
        variables = named_variables(self._network())
        for path in [] if self.merged else self.paths:
            variables[path].assign(self._changed(path, variables[path]))
            self.changes[path].b.assign(tf.zeros_like(self.changes[path].b))  # for functions that are traced already
        self.merged = True

    def _changed(self, path: str, w: tf.Tensor) -> tf.Tensor:
        return w + tf.reshape(self.scale * self.changes[path](), w.shape)


class _Change(Module):
    """The product of two small matrices, as large as the matrix `w`."""

    def __init__(self, w: tf.Variable, rank: int, rng: Rng):
        super().__init__()
        columns = w.shape[-1]
        rows = w.shape.num_elements() // columns
        self.a = tf.Variable(initializers.lecun_normal()(rng, [rows, rank], w.dtype), name="a")
        self.b = tf.Variable(tf.zeros([rank, columns], w.dtype), name="b")

    def __call__(self) -> tf.Tensor:
        return tf.matmul(self.a, self.b)


def merge_all(task: tf.Module) -> None:
    """Merges each `Lora` of a task that is trained no more, before its weights are written for another program."""
    for module in task.submodules:
        if isinstance(module, Lora):
            module.merge()


def _leaves(network: tf.Module) -> list[tuple[str, tf.Tensor]]:
    """Returns paths and leaves of a module, which are variables, or tensors in a copy."""
    found = flattened(network, lambda x: isinstance(x, tf.Variable) or tf.is_tensor(x), with_path=True)
    return [("/".join(map(str, path)), leaf) for path, leaf in found]


def _check_matrix(path: str, variable: tf.Variable, rank: int) -> None:
    shape = variable.shape
    if shape.rank < 2 or not variable.dtype.is_floating or not variable.trainable:
        raise ConfigurationError(
            f"`Lora.patterns` matches `{path}`, {variable.dtype.name} of shape {list(shape)}, which isn't a trainable "
            "matrix: name kernels only, such as ['*/attention/*/w']."
        )
    most = min(shape[-1], shape.num_elements() // shape[-1])
    if rank > most:
        raise ConfigurationError(
            f"`Lora.rank` is {rank}, but `{path}` of shape {list(shape)} has the rank {most} at most: give less."
        )
