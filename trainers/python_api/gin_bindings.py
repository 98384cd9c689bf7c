"""Keeps each run's gin bindings apart, so that several runs fit into one process.

gin has one configuration per process. A reference without parentheses (`@gelu`) looks up its bindings when called, not
when passed. So two runs in one process would mix their bindings. Here each run has a `KeptBindings`, which is
`in_force` whenever a reference of that run is called:

    >>> import gin
    >>> @gin.configurable
    ... def scaled(x, by=1.0):
    ...     return x * by
    >>> @gin.configurable
    ... def network(activation=gin.REQUIRED):
    ...     return activation
    >>> first = KeptBindings(lambda: gin.parse_config("network.activation = @scaled\\nscaled.by = 2.0"))
    >>> second = KeptBindings(lambda: gin.parse_config("network.activation = @scaled\\nscaled.by = 3.0"))
    >>> with first.in_force():
    ...     double = network()
    >>> with second.in_force():
    ...     triple = network()
    >>> double(1.0), triple(1.0), scaled(1.0)
    (2.0, 3.0, 1.0)

Bindings are in force per thread: other threads still see the bindings of the process.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any

from gin import config as gin_config

_NAMES = ("_CONFIG", "_OPERATIVE_CONFIG", "_SINGLETONS")  # gin's state per process


class KeptBindings:
    """The gin bindings that a call of `bind` makes. The bindings of the process stay unchanged."""

    def __init__(self, bind: Callable[[], object]) -> None:
        self._tables: dict[str, dict[Any, Any]] = {name: {} for name in _NAMES}
        imports, locked = set(gin_config._IMPORTS), gin_config._CONFIG_IS_LOCKED
        try:
            with self.in_force(), gin_config.unlock_config():
                bind()
        finally:  # these two aren't dictionaries, and matter only within `bind`
            gin_config._IMPORTS.clear()
            gin_config._IMPORTS.update(imports)
            gin_config._set_config_is_locked(locked)
        for reference in gin_config.iterate_references(self._tables["_CONFIG"]):
            if not reference.evaluate:
                reference._scoped_configurable_fn = gin_config._decorate_fn_or_cls(
                    self._called_in_force,
                    reference.scoped_configurable_fn,
                    reference.configurable.selector,
                    avoid_class_mutation=True,
                    decorate_methods=True,
                )

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Makes gin use these bindings in this thread, outside of all scopes, while the block runs."""
        if _CURRENT.get() is self:  # already in force; keep the open scope
            yield
            return
        token = _CURRENT.set(self)
        try:
            with gin_config.config_scope(None):
                yield
        finally:
            _CURRENT.reset(token)

    def _called_in_force(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self.in_force():
                return function(*args, **kwargs)

        return called


class _OfThread(MutableMapping[Any, Any]):
    """Stands in for a dictionary of gin: uses the one of this thread's bindings, or else the process's."""

    def __init__(self, name: str, of_process: dict[Any, Any]):
        self._name, self._of_process = name, of_process

    @property
    def _table(self) -> dict[Any, Any]:
        kept = _CURRENT.get()
        return self._of_process if kept is None else kept._tables[self._name]

    def __getitem__(self, key: Any) -> Any:
        return self._table[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._table[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._table[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


_CURRENT: ContextVar[KeptBindings | None] = ContextVar("kept_bindings", default=None)
for _name in _NAMES:  # gin has no hook to choose bindings per call
    setattr(gin_config, _name, _OfThread(_name, getattr(gin_config, _name)))
