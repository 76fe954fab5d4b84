"""Run the steps of an agent's attempt: its work tree, the agent, the script after it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CommandFailed, Transient
from ..agents.work_tree import GIT_VARIABLES, WorkTrees, run_inside
from ..commands.attempt_access import OpenAccess
from ..commands.command import Command
from ..commands.invocation import Completed, Invocation
from ..commands.process import ProcessRunner, RunningCommand
from ..core.records import Attempt
from ..execution.attempt import PooledAttempt
from ..execution.failure_facts import name_signal
from .agent_attempts import AgentAttempts
from .subprocess_results import CommandAttempts

if TYPE_CHECKING:
    from ..execution.engine_run import EngineRun

log = logging.getLogger("agentos")


class AgentRunner:
    """Runs the attempts of an agent. *new_process* makes the handle of one more process of an attempt."""

    def __init__(
        self,
        run: EngineRun,
        command: Command,
        attempts: CommandAttempts,
        agents: AgentAttempts,
        runner: ProcessRunner,
        new_process: Callable[[], RunningCommand],
    ) -> None:
        self._run = run
        self._command = command
        self._attempts = attempts
        self._agents = agents
        self._runner = runner
        self._new_process = new_process

    def run(self, attempt: Attempt, plain: Invocation, access: OpenAccess | None) -> dict[str, Any]:
        """Run the attempt, and return its value. An agent that is done already is not run again."""
        value = self._agents.find_value(attempt)
        if value is None:
            value = self._run_agent(attempt, plain, access)
            if self._command.after is not None:
                self._agents.note_value(attempt, value)
        if self._command.after is not None:
            self._run_after(attempt, plain)
        if self._command.trees is not None:
            value = {**value, **self._clear_tree(attempt, plain, self._command.trees)}
        return value

    # -- the agent ------------------------------------------------------------------------------------------------

    def _run_agent(self, attempt: Attempt, plain: Invocation, access: OpenAccess | None) -> dict[str, Any]:
        """Run the agent; once more with a new session if the old one cannot be resumed."""
        secret, checkpoint = self._run.secret_for(attempt), self._run.folder.path_for(attempt.item.id)
        note: str | None = None
        self._agents.require_login(attempt)
        while True:
            tree = self._prepare_tree(attempt, plain)
            invocation, process = self._agents.begin(attempt, plain)
            if tree is not None:
                invocation = replace(invocation, argv=run_inside(tree, invocation.argv))
            running = self._begin_process(attempt)
            output = self._attempts.open_output(attempt, process)
            lock = None
            if isinstance(attempt, PooledAttempt) and attempt.grant is not None:
                lock = attempt.pool.lock_lease(attempt.grant, running.mark)
            try:
                if (note := note or self._agents.describe_begin(process)) is not None:
                    output.write("stderr", f"agentos: {note}\n".encode())
                completed = self._runner.run(invocation, running, secret, checkpoint, output.write, lock)
            finally:
                captured = output.finish()
            report = process.reader.finish(_exit_code(completed))
            if not self._agents.is_refused(attempt, process, report):
                if access is not None:
                    attempt.wire = access.close()  # before the evaluation, which needs what the providers answered
                if tree is not None:
                    attempt.facts = {"tree": str(tree)}
                return self._attempts.evaluate(attempt, invocation, completed, captured, process, report)
            reason = self._run.state.masked(report.reason)
            note = f"session {process.session.id} cannot be resumed ({reason}); a new one begins"
            log.warning("[COORDINATOR] %s: %s", attempt.item.id, note)

    def _begin_process(self, attempt: Attempt) -> RunningCommand:
        """Return the handle of the attempt's next process, by which it can be ended."""
        before, running = attempt.runner, self._new_process()
        running.follow(before)
        attempt.runner = running
        if attempt.cancelled is not None:
            raise self._run.build_cancellation(attempt)
        return running

    # -- its work tree --------------------------------------------------------------------------------------------

    def _prepare_tree(self, attempt: Attempt, plain: Invocation) -> Path | None:
        """Return the folder that the agent works in: the one of its session, or a new clone."""
        trees, item = self._command.trees, attempt.item
        if trees is None:
            return None
        repository = trees.find_repository(item.payload)
        if not self._agents.will_resume(attempt):
            try:
                aside = trees.set_aside(item.id)
            except OSError as error:
                raise CommandFailed(reason=f"--clone: its earlier tree cannot be set aside: {error}") from None
            if aside is not None:
                log.warning("[COORDINATOR] %s begins anew; its earlier tree is %s", item.id, aside)
        path = trees.path_for(item.id)
        if not path.exists():
            completed, last = self._run_step(attempt, plain, trees.build_clone(repository, item.id), GIT_VARIABLES)
            self._require_success(attempt, "--clone", completed, last)
        return path

    def _clear_tree(self, attempt: Attempt, plain: Invocation, trees: WorkTrees) -> dict[str, Any]:
        """Remove the tree of an item that is done, unless it has work that is nowhere else. Return where it is."""
        path = trees.path_for(attempt.item.id)
        if not path.exists():
            return {}
        if not trees.keep:
            completed, _ = self._run_step(attempt, plain, trees.build_check(attempt.item.id), GIT_VARIABLES)
            if _exit_code(completed) == 0:
                trees.remove(attempt.item.id)
                return {}
        return {"tree": str(path)}

    # -- the script after it --------------------------------------------------------------------------------------

    def _run_after(self, attempt: Attempt, plain: Invocation) -> None:
        """Run the script. It fails the attempt, and is then retried alone."""
        template, item = self._command.after_template, attempt.item
        if template is None:
            return
        argv = tuple(template.fill(item.payload, item.id, item.index + 1))
        if self._command.trees is not None:
            path = self._command.trees.path_for(item.id)
            attempt.facts = {"tree": str(path)}
            argv = run_inside(path, argv)
        self._require_success(attempt, "--after", *self._run_step(attempt, plain, argv, {}))

    def _require_success(self, attempt: Attempt, option: str, completed: Completed, last: str | None) -> None:
        """Raise for a step of *option* that failed or was ended. *last* is its last line of standard error."""
        code = _exit_code(completed)
        if attempt.cancelled is not None and (completed.asked_to_end or code != 0):
            raise self._run.build_cancellation(attempt)
        if code == 0:
            return
        ended = "was lost" if code is None else f"exit {code}" if code > 0 else f"killed by {name_signal(-code)}"
        if completed.was_silent:
            ended = f"silent for {self._command.idle_timeout:g}s, and stopped"
        raise Transient(f"{option}: {ended}{f': {last}' if last else ''}")

    def _run_step(
        self, attempt: Attempt, plain: Invocation, argv: tuple[str, ...], variables: Mapping[str, str]
    ) -> tuple[Completed, str | None]:
        """Run a command without a key or a token. Return how it ended, and its last line of standard error."""
        invocation = replace(
            plain, argv=argv, stdin=False, prompt=None, credential=None, env_key=None, variables=dict(variables)
        )
        running = self._begin_process(attempt)
        output = self._attempts.open_output(attempt)
        try:
            checkpoint = self._run.folder.path_for(attempt.item.id)
            completed = self._runner.run(invocation, running, None, checkpoint, output.write)
        finally:
            captured = output.finish()
        return completed, captured.error_tail[-1] if captured.error_tail else None


def _exit_code(completed: Completed) -> int | None:
    return None if completed.status is None else os.waitstatus_to_exitcode(completed.status)
