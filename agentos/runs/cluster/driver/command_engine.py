"""Engine that runs commands on cluster workers and evaluates their results in the driver."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...commands.command import Command
from ...commands.environment import base_environment
from ...core.records import Attempt
from ...engines.subprocess_results import CommandAttempts
from ...engines.subprocesses import FORCED, build_run_id
from ...remote.pickled import pack
from ..wire.secret_digests import SecretDigests
from ..worker.command_runner import WorkerEnvironment
from ..worker.slot import WorkerJob
from .driver_server import DriverServer
from .engine import TIME_TO_END, ClusterEngine, WorkerPlacement
from .worker_process import WorkRequest

if TYPE_CHECKING:
    from ...execution.engine_run import EngineRun


class ClusterCommandEngine(ClusterEngine):
    """Run one command per item on a worker of the cluster."""

    def __init__(self, run: EngineRun, placement: WorkerPlacement, *, ttl: float | None) -> None:
        super().__init__(run, placement, ttl=ttl)
        command = run.worker.call
        assert isinstance(command, Command)  # noqa: S101 - for the type checker: only then is this engine chosen
        self._command = command
        self._command_attempts = CommandAttempts(run, command)
        self.clean_up = command.kill_after + TIME_TO_END

    def _time_to_end(self, attempt: Attempt) -> float:
        return FORCED if attempt.cancelled == "stop" else self._command.kill_after

    def _run_on_worker(
        self, server: DriverServer, request: WorkRequest, attempt: Attempt
    ) -> tuple[Any, BaseException | None]:
        attempts = self._command_attempts
        slot = attempts.take_slot()
        try:
            invocation = attempts.build_invocation(attempt, slot)
            assignment = self._assigner.build(attempt, pack(invocation, "the command"))
            output = attempts.open_output(attempt)
            try:
                completed, error = self._exchange(server, request, attempt, assignment, output)
            finally:
                captured = output.finish()
            if error is not None:
                return None, error
            return attempts.evaluate(attempt, invocation, completed, captured), None
        finally:
            attempts.release_slot(slot)

    def _job(self, width: int) -> WorkerJob:
        run, command = self._run, self._command
        masker = None if run.state.secrets is None else run.state.secrets.masker
        environ = command.env
        if environ is not None:
            holds_secret: Callable[[str], bool] = (lambda _: False) if masker is None else masker.contains_secret
            environ = base_environment(environ, command.without, holds_secret)
        return WorkerJob(
            commands=WorkerEnvironment(
                run_id=command.run_id or build_run_id(run),
                environ=environ,
                without=frozenset(command.without),
                traceparent=(os.environ if command.env is None else command.env).get("TRACEPARENT"),
                cwd=command.cwd,
                secret_digests=SecretDigests.build([] if masker is None else masker.credentials),
            )
        )
