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
from ...commands.environment import CommandEnvironment, base_environment
from ...commands.heartbeat import Heartbeat, compute_max_silence
from ...commands.helper_client import HelperClient
from ...commands.invocation import Invocation
from ...commands.process import ProcessRunner, RunningCommand, Write
from ...context import CheckpointFolder
from ...remote.assignment import Assignment
from ...remote.attempt_report import AttemptReport, build_failure
from ...remote.pickled import pack, unpack
from ...remote.worker_lease import LeaseLoss
from ...remote.worker_secrets import resolve_secret
from ..wire.secret_digests import SecretDigests


@dataclass(frozen=True, slots=True, repr=False)
class WorkerEnvironment:
    """What the commands of a run find around them, on whatever machine.

    *environ* is the environment of all of them; None: that of the worker, without the variables in which a secret of
    the pool stands. Those are known by the *shadows* of the secrets.
    """

    run_id: str
    environ: Mapping[str, str] | None
    without: Collection[str]
    traceparent: str | None
    cwd: str | None
    secret_digests: SecretDigests


class WorkerCommandRunner:
    """Performs the commands of one run in this process; its seats share it.

    The driver gives a worker up after *ttl* seconds of silence: should this process stand still, so do its commands.
    """

    def __init__(self, around: WorkerEnvironment, ttl: float) -> None:
        self._worker_environment = around
        self._folder = Path(tempfile.mkdtemp(prefix="agentos-"))  # where commands say how they went
        self._checkpoints = CheckpointFolder(None)
        session = secrets.token_hex(8)
        self._marks = (f"{session}.{number}" for number in itertools.count(1))
        self._helper = HelperClient(self._base(), f"{session}.", self._folder, around.cwd, compute_max_silence(ttl))
        self._losses: dict[str, LeaseLoss] = {}  # of the commands that run, by mark
        self._heartbeat = Heartbeat(self._helper, self._find_lost_leases)
        self._heartbeat.start()
        trace = {} if around.traceparent is None else {"TRACEPARENT": around.traceparent}
        self._runner = ProcessRunner(self._helper, CommandEnvironment(around.run_id, trace, self._folder))

    def _base(self) -> dict[str, str]:
        around = self._worker_environment
        if around.environ is not None:
            return dict(around.environ)
        return base_environment(os.environ, around.without, around.secret_digests.are_in)

    def run(
        self, assignment: Assignment, started: Callable[[RunningCommand], object], write: Write, lost: LeaseLoss
    ) -> AttemptReport:
        """Perform the order in the assignment. *started* gets the means to end it. Never raises.

        Once it is *lost*, others may have its key: if it was stopped until then, it is killed instead of continued.
        """
        try:
            secret = resolve_secret(assignment, os.environ)
        except AgentOSError as error:
            return AttemptReport(assignment.token, unready=str(error))
        cwd = self._worker_environment.cwd
        if cwd is not None and not os.path.isdir(cwd):
            return AttemptReport(assignment.token, unready=f"there is no folder {cwd} on {socket.gethostname()}")
        running = RunningCommand(next(self._marks), self._helper)
        self._losses[running.mark] = lost
        try:
            order: Invocation = unpack(assignment.payload, "the item")
            started(running)
            checkpoint = self._checkpoints.path_for(order.item_id)
            performed = self._runner.run(order, running, secret, checkpoint, write)
            performed = replace(performed, host=socket.gethostname())
            return AttemptReport(assignment.token, value=pack(performed, "how the command went"))
        except BaseException as error:  # noqa: BLE001 - whatever happens fails its item, not its process
            return AttemptReport(assignment.token, failure=build_failure(error))
        finally:
            del self._losses[running.mark]

    def _find_lost_leases(self, _stopped_for: float) -> list[str]:
        """Which commands have lost their key, by what the driver has last said: their marks."""
        return [mark for mark, lost in list(self._losses.items()) if lost.is_set()]

    def close(self) -> None:
        """End whatever still runs."""
        self._heartbeat.close()
        self._helper.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._checkpoints.on_run_end()
