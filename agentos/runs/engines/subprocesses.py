"""Run commands: one thread per worker waits for one command at a time; a helper process starts and ends them."""

from __future__ import annotations

import logging
import os
import resource
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import Interrupted
from ..commands.attempt_access import OpenAccess
from ..commands.command import Command
from ..commands.environment import CommandEnvironment, base_environment
from ..commands.heartbeat import Heartbeat, compute_max_silence
from ..commands.helper_client import HelperClient
from ..commands.orphans import end_orphans, find_orphans
from ..commands.process import ProcessRunner, RunningCommand
from ..core.records import LOST, Attempt
from ..core.states import Verdict
from ..execution.attempt import PooledAttempt
from .agent_runner import AgentRunner
from .subprocess_results import CommandAttempts
from .threads import ThreadEngine

if TYPE_CHECKING:
    from ..execution.engine_run import EngineRun

log = logging.getLogger("agentos")

_NAMED = 10
_DESCRIPTORS_EACH, _DESCRIPTORS_BESIDES = 8, 128
_REAPED_WITHIN = 0.4
FORCED = 0.2  # seconds for a command to end when the run no longer waits for it


class SubprocessEngine(ThreadEngine):
    """Runs one command for each item, in its own session and process group."""

    def __init__(self, run: EngineRun) -> None:
        super().__init__(run)
        command = run.worker.call
        assert isinstance(command, Command)  # noqa: S101 - for the type checker: the engine is chosen by this
        self._command = command
        self._command_attempts = CommandAttempts(run, command)
        folder = run.folder.ensure_folder()
        self._end_orphans(folder)
        for left in folder.glob(".attempts-*"):
            shutil.rmtree(left, ignore_errors=True)
        session = secrets.token_hex(8)
        self._attempts = folder / f".attempts-{session}"  # outcome files
        self._attempts.mkdir(mode=0o700)
        environ = os.environ if command.env is None else command.env
        holds_secret = (lambda _: False) if run.state.secrets is None else run.state.secrets.masker.contains_secret
        base = base_environment(environ, command.without, holds_secret)
        within = compute_max_silence(getattr(run.state.pool, "lease_ttl", None))
        self._helper = HelperClient(base, f"{session}.", self._attempts, command.cwd, within)
        self.suspension = self._heartbeat = Heartbeat(self._helper, self._find_lost_leases)
        environment = CommandEnvironment(command.run_id or build_run_id(run), environ, self._attempts)
        self._runner = ProcessRunner(self._helper, environment)
        agents = self._command_attempts.agents
        self._agent_runner = (
            None
            if agents is None
            else AgentRunner(run, command, self._command_attempts, agents, self._runner, self._new_process)
        )
        # A command may take this long to end; only then is it abandoned.
        self.clean_up = command.kill_after + 1.0

    @staticmethod
    def _end_orphans(folder: Path) -> None:
        """End commands that an earlier session left running when it was killed together with its helper."""
        orphans = find_orphans(folder)
        if orphans:
            named = ", ".join(map(str, orphans[:_NAMED])) + (" ..." if len(orphans) > _NAMED else "")
            log.warning("[COORDINATOR] ending %d processes of an earlier session of this run: %s", len(orphans), named)
            end_orphans(orphans)

    def start(self, workers: int) -> None:
        _raise_descriptor_limit(_DESCRIPTORS_EACH * workers + _DESCRIPTORS_BESIDES)
        self._helper.start()
        self._heartbeat.start()
        super().start(workers)

    def cancel(self, attempt: Attempt) -> bool:
        running = attempt.runner
        if running is None:
            return False
        running.end(FORCED if attempt.cancelled == "stop" else self._command.kill_after)
        return True

    def kill(self) -> None:
        self._helper.close(wait=_REAPED_WITHIN)

    def close(self) -> None:
        self._heartbeat.close()
        self._helper.close()
        shutil.rmtree(self._attempts, ignore_errors=True)
        try:
            self._attempts.parent.rmdir()
        except OSError:
            pass  # unfinished items keep checkpoints there

    def _new_process(self) -> RunningCommand:
        return RunningCommand(self._helper)

    def _run_one(self, attempt: Attempt) -> Verdict:
        run = self._run
        value: Any = None
        error: BaseException | None = None
        running = attempt.runner = self._new_process()
        slot = self._command_attempts.take_slot()
        try:
            if attempt.cancelled is not None:
                raise run.build_cancellation(attempt)  # noqa: TRY301 - before there was a process to end
            if run.recorder.strict:
                self._wait_for_start(attempt)
            value = self._run_command(attempt, running, slot)
        except BaseException as raised:  # noqa: BLE001 - any error fails the item, not the run
            error = raised
        finally:
            self._command_attempts.release_slot(slot)
            attempt.runner.finish()  # an agent may have had a second process
            if isinstance(attempt, PooledAttempt) and attempt.grant is not None:
                attempt.pool.unlock_lease(attempt.grant)
        try:
            if attempt.cancelled == LOST and isinstance(error, Interrupted) and run.requeue(attempt, str(error)):
                return Verdict.INTERRUPTED
            return run.finish(attempt, value, error)
        finally:
            error = None  # break the cycle with its traceback, which holds this frame

    def _run_command(self, attempt: Attempt, running: RunningCommand, slot: int) -> dict[str, Any]:
        access = self._command_attempts.open_access(attempt)
        running.waits = None if access is None else access.waited
        try:
            return self._run_invocation(attempt, running, slot, access)
        finally:
            if access is not None:
                access.close()

    def _run_invocation(
        self, attempt: Attempt, running: RunningCommand, slot: int, access: OpenAccess | None
    ) -> dict[str, Any]:
        invocation = self._command_attempts.build_invocation(attempt, slot, access)
        if self._run.has_lost_lease(attempt):  # this process was suspended since the grant
            attempt.cancelled = LOST
            raise self._run.build_cancellation(attempt)
        if self._agent_runner is not None:
            return self._agent_runner.run(attempt, invocation, access)
        secret, checkpoint = self._run.secret_for(attempt), self._run.folder.path_for(attempt.item.id)
        output = self._command_attempts.open_output(attempt)
        lock = None
        if isinstance(attempt, PooledAttempt) and attempt.grant is not None:
            lock = attempt.pool.lock_lease(attempt.grant, running.mark)
        try:
            completed = self._runner.run(invocation, running, secret, checkpoint, output.write, lock)
        finally:
            captured = output.finish()
        if access is not None:
            attempt.wire = access.close()  # before the evaluation, which may need what the providers answered
        return self._command_attempts.evaluate(attempt, invocation, completed, captured)

    # -- after a suspension of this process -------------------------------------------------------------------------

    def _find_lost_leases(self, stopped_for: float) -> list[str]:
        """Return the marks of the commands that lost their key while they were stopped for *stopped_for* seconds."""
        run = self._run
        lost = []
        with run.state.lock:
            running = [(attempt, attempt.runner) for attempt in run.state.scheduler.running.values()]
        for attempt, runner in running:
            if runner is not None and not self._keeps_lease(attempt, runner):
                if attempt.cancelled is None:
                    attempt.cancelled, attempt.cancelled_at = LOST, run.state.clock.now()
                lost.append(runner.mark)
        run.credit_suspension(stopped_for)
        return lost

    @staticmethod
    def _keeps_lease(attempt: Attempt, runner: RunningCommand) -> bool:
        grant = attempt.grant
        if not isinstance(attempt, PooledAttempt) or grant is None:
            return True
        held = attempt.pool.reacquire(grant)
        if held is None or held is grant:
            return held is not None
        if not runner.unless_finished(lambda: setattr(attempt, "grant", held)):
            attempt.pool.give_back(held)
        return True


def build_run_id(run: EngineRun) -> str:
    """Return the default of AGENTOS_RUN_ID."""
    journal = run.state.options.journal
    return f"run-{secrets.token_hex(4)}" if journal is None else os.path.basename(os.path.abspath(journal))


def _raise_descriptor_limit(descriptors: int) -> None:
    """Raise the descriptor limit as far as possible: each of hundreds of commands has three pipes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < descriptors:
        wanted = descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # commands that find none are retried
