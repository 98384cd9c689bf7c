"""The chief's pool of parameter servers and workers. The chief has a heartbeat link to each process.

If a parameter server (`ps`) is lost, the run ends, and restarts from the last checkpoint. Workers may leave and return.
TensorFlow reports neither event: it waits minutes for missing processes, and ignores signals meanwhile.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from core.checkpoint.versions import versions
from core.cluster.channel import ANSWER_SECONDS, POLL_SECONDS, Channel, broadcast_and_close, cleaned
from core.cluster.heartbeat import SILENT_SECONDS, LineLostError, heard
from core.cluster.membership import become, joined
from core.cluster.port_check import hang_up, knock
from core.cluster.rendezvous import ask
from core.cluster.topology import ServedCluster, cluster_from_environment
from core.errors import ConfigurationError, PeerLostError

if TYPE_CHECKING:
    import tensorflow as tf  # a launcher needn't wait for it


class Crew:
    """The chief's heartbeat links to all parameter servers and workers, each in a separate thread."""

    def __init__(self, cluster: ServedCluster, hello: Mapping[str, Any], *, deadline: float, token: str):
        self.cluster = cluster
        self.lost: str | None = None
        self._hello, self._deadline, self._token = hello, deadline, token
        self._changed = threading.Condition()  # guards the attributes below
        self._here: set[int] = set()
        self._leaving: set[int] = set()  # workers that asked to leave
        self._released: set[int] = set()  # workers that may leave
        self._troubles: dict[int, str] = {}  # why absent processes didn't answer
        self._refusal: ConfigurationError | None = None
        self._last_worker = time.monotonic()  # when a worker was last connected
        self._timeout = math.inf
        self._on_lost: Callable[[str], None] | None = None
        self._over, self._bye = threading.Event(), dict[str, Any]()
        self._dismissed: list[Channel] = []
        self._threads = [
            threading.Thread(target=self._attend, args=(i,), daemon=True, name=f"line to {cluster.name(i)}")
            for i in range(1, len(cluster.workers))
        ]

    @classmethod
    def meet(cls, cluster: ServedCluster, *, about: Mapping[str, str], deadline: float, token: str = "") -> "Crew":
        """Waits up to `deadline` seconds for all processes. All must have the same token, cluster and `about`."""
        crew = cls(cluster, cleaned({"workers": list(cluster.workers), "about": about}), deadline=deadline, token=token)
        try:
            crew._wait_for_all()
        except BaseException:
            crew.leave("it ended before the first step")
            raise
        return crew

    def _wait_for_all(self) -> None:
        for thread in self._threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(
                lambda: self.lost or self._refusal or len(self._here) == len(self._threads), self._deadline
            )
            if self._refusal:
                raise self._refusal
            missing = [
                f"{self.cluster.name(index)} didn't come within {self._deadline:g} s ({self._troubles.get(index)})"
                for index in range(1, len(self.cluster.workers))
                if index not in self._here
            ]
        if missing:
            raise PeerLostError(f"{self.lost or ', '.join(missing)}. Look at its log, and start all processes again.")

    def watch(self, *, timeout: float, on_lost: Callable[[str], None]) -> None:
        """From now on, calls `on_lost` with a sentence if a process that the run needs is lost.

        A process that is silent for `timeout` seconds counts as lost.
        """
        self._timeout = timeout
        with self._changed:
            self._on_lost = on_lost
            lost = self.lost
        if lost:
            on_lost(lost)

    def wait_for_word(self, seconds: float) -> str | None:
        """Waits at most `seconds` for the loss of a needed process. Returns a sentence that names it, or None."""
        with self._changed:
            self._changed.wait_for(lambda: self.lost, seconds)
        return self.lost

    def leave(self, reason: str | None = None) -> None:
        """Tells all connected processes that the run has ended, and the `reason` if there is one."""
        self._bye = {"bye": reason}
        self._over.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(2 * ANSWER_SECONDS)

    def release(self) -> None:
        """Lets workers leave that were asked to stop, and waits for them. Call it between steps."""
        with self._changed:
            self._released |= self._leaving
            self._changed.wait_for(lambda: not self._released & self._here, 2 * ANSWER_SECONDS)

    def missing(self) -> list[str]:
        workers = [index for index, job in enumerate(self.cluster.jobs) if job == "worker"]
        with self._changed:
            return [self.cluster.name(index) for index in workers if index not in self._here]

    # --- in the thread of one link ------------------------------------------------------------------------------------

    def _attend(self, index: int) -> None:
        """Keeps the link to process `index`. If a worker was lost, it connects again."""
        name, came_before = self.cluster.name(index), False
        while channel := self._reach(index):
            self._set_here(index, True)
            if came_before:
                print(f"{name} is here again", flush=True)
            came_before = True
            try:
                how = self._listen(index, channel)
            except LineLostError as error:
                how = str(error)
            if self._over.is_set():
                self._dismissed.append(channel)
                return
            channel.close()
            self._set_here(index, False)
            hang_up(self.cluster.workers[index])  # makes TensorFlow give it up as well
            if self.cluster.jobs[index] == "ps":
                self._lose(f"{name} {how}")
                return
            print(f"Warning: {name} {how}: its steps go to the other workers until it comes again", flush=True)

    def _reach(self, index: int) -> Channel | None:
        """Tries to connect until process `index` answers. Returns its channel, or None if the run ends first."""
        while not self._over.wait(4 * POLL_SECONDS):
            if self._on_lost and self._is_alone_for() > self._deadline:
                self._lose(f"all workers are gone, and none has come again within {self._deadline:g} s")
            try:
                channel = Channel(knock(self.cluster.workers[index]))
            except OSError as error:
                trouble = error.strerror or str(error)
            else:
                until = time.monotonic() + ANSWER_SECONDS
                try:
                    trouble = ask(channel, self._hello, self._token, until, until)
                except ConfigurationError as refusal:
                    trouble, self._refusal = str(refusal), refusal
                if not trouble:
                    return channel
                channel.close()
            with self._changed:
                self._troubles[index] = trouble
                self._changed.notify_all()
        return None

    def _listen(self, index: int, channel: Channel) -> str:
        """Reads messages from process `index` until it leaves or the run ends. Returns how it left."""
        for message in heard(channel, patience=lambda: self._timeout):
            if self._over.is_set():
                self._dismiss(channel)
                return "was dismissed"
            if index in self._released:
                broadcast_and_close([channel], {"leave": True})
                return "was told to stop, and has left"
            if "leaving" in message:
                self._ask_for(index)
        raise AssertionError("a line ends by an error")

    def _dismiss(self, channel: Channel) -> None:
        """Tells a process that the run has ended. Waits up to 5 seconds for it to close the connection."""
        channel.send(self._bye)
        until = time.monotonic() + ANSWER_SECONDS
        while not channel.closed and time.monotonic() < until:
            channel.flush()
            channel.wait(POLL_SECONDS)
            for _ in channel.messages():
                pass

    def _ask_for(self, index: int) -> None:
        """Handles a process that was asked to stop. A worker leaves between two steps; a server ends the run."""
        if self.cluster.jobs[index] == "ps":
            print(f"{self.cluster.name(index)} was told to stop, and all with it", flush=True)
            os.kill(os.getpid(), signal.SIGTERM)  # the chief saves, and then dismisses all
        else:
            with self._changed:
                self._leaving.add(index)

    def _set_here(self, index: int, here: bool) -> None:
        with self._changed:
            if self.cluster.jobs[index] == "worker":
                self._last_worker = time.monotonic()
            (self._here.add if here else self._here.discard)(index)
            self._leaving.discard(index)
            self._released.discard(index)
            self._changed.notify_all()

    def _is_alone_for(self) -> float:
        """Returns how many seconds the chief has had no connected worker."""
        with self._changed:
            if any(self.cluster.jobs[index] == "worker" for index in self._here):
                return 0.0
            return time.monotonic() - self._last_worker

    def _lose(self, sentence: str) -> None:
        """Records in `lost` why the run ends, and calls `on_lost`. Later losses are ignored."""
        with self._changed:
            if self.lost:
                return
            self.lost = sentence
            self._changed.notify_all()
            on_lost = self._on_lost
        if on_lost:
            on_lost(sentence)


def release_workers() -> None:
    """In a chief, lets workers leave that were asked to stop. Call it between steps."""
    membership = joined()
    if membership is not None and isinstance(membership.heartbeat, Crew):
        membership.heartbeat.release()


def missing_workers() -> list[str]:
    """Returns the names of workers that aren't connected to this chief. Other processes get an empty list."""
    membership = joined()
    return membership.heartbeat.missing() if membership is not None and isinstance(membership.heartbeat, Crew) else []


def connect_servers(deadline: float) -> "tf.train.ClusterSpec":
    """In the chief, waits for all workers and parameter servers, and watches them from then on.

    An error names the processes that don't come within `deadline` seconds. TensorFlow itself would wait forever.
    """
    import tensorflow as tf

    cluster = cluster_from_environment()
    if not isinstance(cluster, ServedCluster):
        raise ConfigurationError(
            "`parameter_server` finds no servers: `TF_CONFIG` names no `ps`. Start all processes by `python -m "
            "trainers.launch --workers=2 --ps=1 -- ...`."
        )
    membership = become(cluster, lambda token: Crew.meet(cluster, about=versions(), deadline=deadline, token=token))
    membership.watch(timeout=SILENT_SECONDS)
    return tf.train.ClusterSpec(cluster.spec)
