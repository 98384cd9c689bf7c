"""Splits the costly work of an update rule over replicas: each computes a part, and gets the others' results.

A rule with `sharded=True` calls `in_shares`, in `init` also `ask`. An engine opens `sharing` around `Optimizer.apply`.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf


class Sharing(NamedTuple):
    """A replica among those that share work; `sum` adds up a nest of tensors over all of them."""

    number: int | None  # None if one program serves all replicas, which can't do different work
    replicas: int
    sum: Callable[[Any], Any]


_sharing: contextvars.ContextVar[Sharing | None] = contextvars.ContextVar("sharing", default=None)
_asked: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("asked", default=None)


@contextlib.contextmanager
def sharing(among: Sharing) -> Iterator[None]:
    """Makes `in_shares` split its work `among` replicas, in its context."""
    token = _sharing.set(among)
    try:
        yield
    finally:
        _sharing.reset(token)


@contextlib.contextmanager
def noticing_sharded() -> Iterator[list[str]]:
    """Yields a list, to which rules with `sharded=True` add their names in `init`."""
    found = list[str]()
    token = _asked.set(found)
    try:
        yield found
    finally:
        _asked.reset(token)


def ask(rule: str) -> None:
    """Records that `rule` calls `in_shares`. It is then updated outside of conditions, as collectives need."""
    if (asked := _asked.get()) is not None:
        asked.append(rule)


def is_sharing() -> bool:
    """Says whether this code runs in a context of `sharing`."""
    return _sharing.get() is not None


def share_of(costs: Mapping[str, float], number: int, replicas: int) -> list[str]:
    """Returns the keys of `costs` for replica `number`: the dearest first, each to the replica with the least so far.

    >>> costs = {"a": 5.0, "b": 3.0, "c": 3.0, "d": 1.0}
    >>> share_of(costs, 0, 2), share_of(costs, 1, 2)
    (['a', 'd'], ['b', 'c'])
    """
    loads, shares = [0.0] * replicas, [list[str]() for _ in range(replicas)]
    for key in sorted(costs, key=lambda key: -costs[key]):
        least = loads.index(min(loads))
        loads[least] += costs[key]
        shares[least].append(key)
    return shares[number]


def in_shares(
    compute: Callable[[Sequence[str]], Mapping[str, Any]],
    costs: Mapping[str, float],
    like: Mapping[str, Any],
    *,
    sharded: bool,
) -> dict[str, Any]:
    """Returns `compute(keys)`, `{key: nest of tensors}`, for all keys of `costs`.

    If `sharded`, each replica computes a part of them, balanced by `costs`. `like` has nests of tensors of the same
    shapes and dtypes. Sums with zeros gather the results, so no result changes.
    """
    among = _sharing.get() if sharded else None
    if among is None:
        return dict(compute([*costs]))
    if among.number is None:
        raise ValueError("`sharded=True` needs a program per replica, but TPUs share one: leave it out.")
    own = share_of(costs, among.number, among.replicas)
    empty = {key: tf.nest.map_structure(tf.zeros_like, like[key]) for key in costs}
    return dict(among.sum({**empty, **compute(own)}))
