"""The start of a training: it takes the workdir, unless that is another run's, and keeps by what the run goes on."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from core import checkpoint
from core.cluster import is_chief
from core.cluster.topology import cluster_from_environment
from core.errors import ConfigurationError
from trainers.gin_audit.identity import config_hash, difference
from trainers.lifecycle.record import record_start
from trainers.loop.input import SOURCE
from trainers.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Configured:
    """What a run is of, however it was said: by gin files or by calls of Python.

    `identity` is what makes it the same run, `hooks` what may be said of hooks besides, and `read` returns the identity
    that a manifest holds. `source` describes what it is trained on. `given` and `operative`, asked for once all is
    made, go into the folder.
    """

    identity: Mapping[str, str]
    hooks: Mapping[str, str]
    read: Callable[[Mapping[str, str]], Mapping[str, str]]
    given: Callable[[], str | None]
    operative: Callable[[], str]
    note: Callable[[Mapping[str, str]], str]  # goes below the table of what differs from that of before
    remedy: str  # for who has found another run in the folder
    source: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Start:
    """Starts a run in a folder, or goes on with it."""

    def __init__(
        self, workdir: Workdir, configured: Configured, *, allow_change: bool = False, restart_optimizer: bool = False
    ):
        self.workdir, self.configured, self._allow_change = workdir, configured, allow_change
        self.restart_optimizer = restart_optimizer
        self.began = False  # once the first chunk of steps is traced

    def claim(self) -> checkpoint.Manifest | None:
        """Takes the workdir, unless it holds a run of another configuration; returns its newest checkpoint."""
        own, found = self.configured.identity, newest_checkpoint(self.workdir)
        self.workdir.create()
        if is_chief():
            self.workdir.lock()
        before = own if found is None else self._identity_of(found)
        old, new = self._sources_of(found)
        if before != own or old != new:
            changes = f"{difference({**before, **old}, {**own, **new})}{self.configured.note(before)}"
            if not self._allow_change:
                raise ConfigurationError(
                    f"the workdir `{self.workdir.named}` holds a run of another configuration:\n{changes}\n"
                    f"{self.configured.remedy}"
                )
            print(f"the configuration has changed, as `--allow_config_change` allows:\n{changes}", flush=True)
        self.workdir.configuration, self.workdir.config_hash = own, config_hash(own)
        self.workdir.hooks = self.configured.hooks
        return found

    def _identity_of(self, found: checkpoint.Manifest) -> Mapping[str, str]:
        saved: Any = found.extra.get("configuration")
        if isinstance(saved, dict) and all(isinstance(value, str) for value in saved.values()):
            return self.configured.read(saved)
        if not self._allow_change:
            raise ConfigurationError(
                f"checkpoint `{found.path}` doesn't say what configuration it is of: a loop of your own has saved it. "
                f"{self.configured.remedy}"
            )
        return self.configured.identity

    def _sources_of(self, found: checkpoint.Manifest | None) -> tuple[dict[str, str], dict[str, str]]:
        """Returns what describes the source of a checkpoint and this run's, by names for a table of differences."""
        saved: Any = found.extra.get(SOURCE) if found else None
        known = saved if isinstance(saved, dict) else self.configured.source  # that of an older version isn't known
        old, new = (
            {f"{key} of the source": str(x) for key, x in one.items()} for one in (known, self.configured.source)
        )
        return old, new

    def record(self, step: int) -> None:
        """Records the configuration that goes on from `step`: not before it has come that far."""
        self.began = True
        if is_chief():
            self.workdir.result.unlink(missing_ok=True)  # it tells of a run that ended; this one goes on
            record_start(
                self.workdir,
                step=step,
                given=self.configured.given(),
                operative=self.configured.operative(),
                devices=[device.name for device in tf.config.list_logical_devices()],
            )


def record_failed_start(workdir: Workdir, *, exit_code: int, reason: str) -> None:
    """Records why a start came to nothing, where no result of a run stands that began."""
    cluster = cluster_from_environment()  # which this process may not have come to join
    if cluster is None or cluster.is_chief:
        workdir.write_failed_start(exit_code=exit_code, reason=reason)


def newest_checkpoint(workdir: Workdir, up_to: int | None = None) -> checkpoint.Manifest | None:
    """Returns the newest whole checkpoint of the workdir, or of its steps `up_to` one."""

    def warn(text: str) -> None:
        print(f"Warning: {text}", flush=True)

    return checkpoint.newest(workdir.checkpoints, warn=warn, up_to=up_to)
