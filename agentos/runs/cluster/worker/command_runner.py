"""Run the commands of a run in a worker process."""

from __future__ import annotations

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
    """Environment of a run's commands, independent of the machine.

    *environ* is the environment of all commands; None takes that of the worker without the variables that hold a secret
    of the pool, which *secret_digests* detects.
    """

    run_id: str
    environ: Mapping[str, str] | None
    without: Collection[str]
    traceparent: str | None
    cwd: str | None
    secret_digests: SecretDigests


class WorkerCommandRunner:
    """Runs the commands of one run in this process; its slots share it.

    The driver gives a worker up after *ttl* seconds of silence, so the commands are suspended when this process is.
    """

    def __init__(self, environment: WorkerEnvironment, ttl: float) -> None:
        self._worker_environment = environment
        self._folder = Path(tempfile.mkdtemp(prefix="agentos-"))  # for the commands' outcome files
        self._checkpoints = CheckpointFolder(None)
        session = secrets.token_hex(8)
        self._helper = HelperClient(
            self._base(), f"{session}.", self._folder, environment.cwd, compute_max_silence(ttl)
        )
        self._losses: dict[str, LeaseLoss] = {}  # of running commands, by mark
        self._heartbeat = Heartbeat(self._helper, self._find_lost_leases)
        self._heartbeat.start()
        trace = {} if environment.traceparent is None else {"TRACEPARENT": environment.traceparent}
        self._runner = ProcessRunner(self._helper, CommandEnvironment(environment.run_id, trace, self._folder))

    def _base(self) -> dict[str, str]:
        environment = self._worker_environment
        if environment.environ is not None:
            return dict(environment.environ)
        return base_environment(os.environ, environment.without, environment.secret_digests.are_in)

    def run(
        self, assignment: Assignment, started: Callable[[RunningCommand], object], write: Write, lost: LeaseLoss
    ) -> AttemptReport:
        """Run the command of the assignment and return its report. Never raises.

        *started* gets the running command, to end it. Once its lease is *lost*, others may have its key: a command that
        was suspended until then is killed instead of resumed.
        """
        try:
            secret = resolve_secret(assignment, os.environ)
        except AgentOSError as error:
            return AttemptReport(assignment.token, unready=str(error))
        cwd = self._worker_environment.cwd
        if cwd is not None and not os.path.isdir(cwd):
            return AttemptReport(assignment.token, unready=f"there is no folder {cwd} on {socket.gethostname()}")
        running = RunningCommand(self._helper)
        self._losses[running.mark] = lost
        try:
            invocation: Invocation = unpack(assignment.payload, "the item")
            started(running)
            checkpoint = self._checkpoints.path_for(invocation.item_id)
            completed = self._runner.run(invocation, running, secret, checkpoint, write)
            completed = replace(completed, host=socket.gethostname())
            return AttemptReport(assignment.token, value=pack(completed, "how the command went"))
        except BaseException as error:  # noqa: BLE001 - any error fails the item, not the process
            return AttemptReport(assignment.token, failure=build_failure(error))
        finally:
            del self._losses[running.mark]

    def _find_lost_leases(self, _stopped_for: float) -> list[str]:
        """Return the marks of the commands that have lost their key, as last reported by the driver."""
        return [mark for mark, lost in list(self._losses.items()) if lost.is_set()]

    def close(self) -> None:
        """End all running commands and remove their files."""
        self._heartbeat.close()
        self._helper.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._checkpoints.on_run_end()
