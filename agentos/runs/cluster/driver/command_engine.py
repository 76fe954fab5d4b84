"""Commands on other machines: performed there, and shown, kept and judged here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...commands.command import Command
from ...commands.environment import base_environment
from ...core.records import Attempt
from ...engines.subprocess_results import CommandDesk
from ...engines.subprocesses import FORCED, name_of_run
from ...remote.pickled import pack
from ..wire.secret_digests import Shadows
from ..worker.command_runner import Surrounding
from ..worker.slot import Job
from .driver_server import Hub
from .engine import TO_END, ClusterEngine, Seating
from .worker_process import Ask

if TYPE_CHECKING:
    from ...execution.engine_run import EngineRun


class ClusterCommandEngine(ClusterEngine):
    """Has one command performed for each item, on whatever machine has a seat."""

    def __init__(self, run: EngineRun, seating: Seating, *, ttl: float | None) -> None:
        super().__init__(run, seating, ttl=ttl)
        command = run.worker.call
        assert isinstance(command, Command)  # noqa: S101 - for the type checker: only then is this engine chosen
        self._command = command
        self._desk = CommandDesk(run, command)
        self.clean_up = command.kill_after + TO_END

    def _time_to_end(self, attempt: Attempt) -> float:
        return FORCED if attempt.cancelled == "stop" else self._command.kill_after

    def _carry_out(self, hub: Hub, ask: Ask, attempt: Attempt) -> tuple[Any, BaseException | None]:
        desk = self._desk
        slot = desk.take_slot()
        try:
            order = desk.order(attempt, slot)
            assignment = self._assigner.assignment(attempt, pack(order, "the command"))
            output = desk.output(attempt)
            try:
                performed, error = self._exchange(hub, ask, attempt, assignment, output)
            finally:
                captured = output.finish()
            if error is not None:
                return None, error
            return desk.outcome(attempt, order, performed, captured), None
        finally:
            desk.give_slot(slot)

    def _job(self, width: int) -> Job:
        run, command = self._run, self._command
        known = None if run.state.secrets is None else run.state.secrets.masker
        environ = command.env
        if environ is not None:
            holds_secret: Callable[[str], bool] = (lambda _: False) if known is None else known.is_in
            environ = base_environment(environ, command.without, holds_secret)
        return Job(
            commands=Surrounding(
                run_id=command.run_id or name_of_run(run),
                environ=environ,
                without=frozenset(command.without),
                traceparent=(os.environ if command.env is None else command.env).get("TRACEPARENT"),
                cwd=command.cwd,
                shadows=Shadows.of([] if known is None else known.credentials),
            )
        )
