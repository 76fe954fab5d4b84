"""Where a worker's process performs the commands of a run."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ....errors import AgentOSError
from ...commands.environment import Surroundings, base_environment
from ...commands.heartbeat import Heartbeat, silence_for
from ...commands.helper_client import Spawner
from ...commands.invocation import Order
from ...commands.process import Performer, Running, Write
from ...context import CheckpointFolder
from ...remote.assignment import Assignment
from ...remote.attempt_report import Report, failure_of
from ...remote.pickled import pack, unpack
from ...remote.worker_lease import Loss
from ...remote.worker_secrets import resolve
from ..wire.secret_digests import Shadows


@dataclass(frozen=True, slots=True, repr=False)
class Surrounding:
    """What the commands of a run find around them, on whatever machine.

    *environ* is the environment of all of them; None: that of the worker, without the variables in which a secret of
    the pool stands. Those are known by the *shadows* of the secrets.
    """

    run_id: str
    environ: Mapping[str, str] | None
    without: Collection[str]
    traceparent: str | None
    cwd: str | None
    shadows: Shadows


class Workshop:
    """Performs the commands of one run in this process; its seats share it.

    The driver gives a worker up after *ttl* seconds of silence: should this process stand still, so do its commands.
    """

    def __init__(self, around: Surrounding, ttl: float) -> None:
        self._around = around
        self._folder = Path(tempfile.mkdtemp(prefix="agentos-"))  # where commands say how they went
        self._checkpoints = CheckpointFolder(None)
        session = secrets.token_hex(8)
        self._marks = (f"{session}.{number}" for number in itertools.count(1))
        self._spawner = Spawner(self._base(), f"{session}.", self._folder, around.cwd, silence_for(ttl))
        self._losses: dict[str, Loss] = {}  # of the commands that run, by mark
        self._heartbeat = Heartbeat(self._spawner, self._look_at_leases)
        self._heartbeat.start()
        trace = {} if around.traceparent is None else {"TRACEPARENT": around.traceparent}
        self._performer = Performer(self._spawner, Surroundings(around.run_id, trace, self._folder))

    def _base(self) -> dict[str, str]:
        around = self._around
        if around.environ is not None:
            return dict(around.environ)
        return base_environment(os.environ, around.without, around.shadows.is_in)

    def perform(self, assignment: Assignment, started: Callable[[Running], object], write: Write, lost: Loss) -> Report:
        """Perform the order in the assignment. *started* gets the means to end it. Never raises.

        Once it is *lost*, others may have its key: if it was stopped until then, it is killed instead of continued.
        """
        try:
            secret = resolve(assignment, os.environ)
        except AgentOSError as error:
            return Report(assignment.token, unready=str(error))
        cwd = self._around.cwd
        if cwd is not None and not os.path.isdir(cwd):
            return Report(assignment.token, unready=f"there is no folder {cwd} on {socket.gethostname()}")
        running = Running(next(self._marks), self._spawner)
        self._losses[running.mark] = lost
        try:
            order: Order = unpack(assignment.payload, "the item")
            started(running)
            checkpoint = self._checkpoints.path_for(order.item_id)
            performed = self._performer.perform(order, running, secret, checkpoint, write)
            performed = replace(performed, host=socket.gethostname())
            return Report(assignment.token, value=pack(performed, "how the command went"))
        except BaseException as error:  # noqa: BLE001 - whatever happens fails its item, not its process
            return Report(assignment.token, failure=failure_of(error))
        finally:
            del self._losses[running.mark]

    def _look_at_leases(self, _stopped_for: float) -> list[str]:
        """Which commands have lost their key, by what the driver has last said: their marks."""
        return [mark for mark, lost in list(self._losses.items()) if lost.is_set()]

    def close(self) -> None:
        """End whatever still runs."""
        self._heartbeat.close()
        self._spawner.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._checkpoints.run_over()
