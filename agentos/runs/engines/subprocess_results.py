"""Build the invocation of an item's command, and evaluate its result, wherever the command runs."""

from __future__ import annotations

import errno
import heapq
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from ...errors import CommandFailed, RateLimited, Transient, WorkerLost
from ...providers.signal import PARKED_FROM
from ..agents.agent_protocol import AgentReport, Ending
from ..commands.attempt_access import OpenAccess
from ..commands.command import Command
from ..commands.invocation import Completed, Invocation
from ..commands.outcome_file import CommandOutcome, InvalidOutcome, parse_outcome
from ..core.records import Attempt
from ..execution.attempt import PooledAttempt
from ..execution.failure_facts import name_signal
from ..output.capture import CapturedOutput, ItemOutput, OutputCapture, OutputView
from ..output.stream_redaction import Redaction
from .agent_attempts import AgentAttempts, AgentProcess

if TYPE_CHECKING:
    from ...providers.wire_verdict import WireVerdict
    from ..execution.engine_run import EngineRun

log = logging.getLogger("agentos")

_MOST_WARNINGS = 100
_LIMITS = ("limited", "parked")  # of a WireVerdict


class CommandAttempts:
    """Builds the invocations of one run, captures the output of the commands, and evaluates how they ended."""

    def __init__(self, run: EngineRun, command: Command) -> None:
        self._run = run
        self._command = command
        secrets = run.state.secrets
        redactors = None if secrets is None else Redaction(secrets.masker, secrets.get_secret).stream
        self._outputs = command.outputs or OutputCapture(None, redactors)
        self._slots: list[int] = []
        self._max_slots = 0
        self._slots_lock = threading.Lock()
        self._warned: set[str] = set()  # warnings about outcome files
        self.agents = None if command.agent is None else AgentAttempts(run, command, command.agent)

    def open_access(self, attempt: Attempt) -> OpenAccess | None:
        """Open the attempt's access to the providers, if it has none by a key. The caller must close it."""
        access = self._command.access
        if access is None:
            return None
        return access.open(attempt.item.id, attempt.number, attempt.usage_log, self._command.argv[0])

    def build_invocation(self, attempt: Attempt, slot: int, access: OpenAccess | None = None) -> Invocation:
        """Build the attempt's invocation. Raises if the template names a field that the item does not have."""
        item, command = attempt.item, self._command
        name = None if attempt.grant is None else attempt.grant.key.name
        variables: dict[str, str] = {}
        if name is not None and isinstance(attempt, PooledAttempt):
            credential = attempt.pool.get_credential(name)
            if credential.base_url is not None:
                variables["AGENTOS_BASE_URL"] = credential.base_url
            variables.update(credential.env)
        argv = tuple(command.template.fill(item.payload, item.id, item.index + 1))
        if access is not None:
            variables.update(access.variables)
            argv = access.add_arguments(argv)
        return Invocation(
            argv=argv,
            text=command.template.format_item(item.payload),
            stdin=command.stdin,
            item_id=item.id,
            attempt=attempt.number,
            slot=slot,
            credential=name,
            variables=variables,
            env_key=None if name is None else command.env_key_of(name),
            idle_timeout=command.idle_timeout,
            kill_after=command.kill_after,
        )

    def open_output(self, attempt: Attempt, view: OutputView | None = None) -> ItemOutput:
        """Open the attempt's output. The caller must finish it."""
        return self._outputs.open_attempt(attempt, view)

    # -- evaluation ---------------------------------------------------------------------------------------------

    def evaluate(
        self,
        attempt: Attempt,
        invocation: Invocation,
        completed: Completed,
        captured: CapturedOutput,
        process: AgentProcess | None = None,
        report: AgentReport | None = None,
    ) -> dict[str, Any]:
        """Return the value of a successful command; raise for any other. *process* and *report*: of an agent."""
        attempt.redacted_output = captured.redacted
        status, ended_by_us = completed.status, completed.asked_to_end or completed.status != 0
        if completed.fault is not None:
            raise _not_started(invocation.argv[0], completed.fault, completed.host)
        outcome = self._parse_outcome(attempt, completed)
        if self.agents is not None and process is not None and report is not None:
            self.agents.settle(attempt, process, report)
        if outcome is not None:
            self._report_outcome(attempt, outcome)
        if attempt.cancelled is not None and ended_by_us:
            raise self._run.build_cancellation(attempt)
        if completed.was_silent and ended_by_us:
            raise TimeoutError(f"silent for {self._command.idle_timeout:g}s, and stopped")
        if completed.asked_to_end and not completed.was_silent:
            raise WorkerLost(
                "its worker lost contact with the run, and ended it"
            )  # this process did not request its end
        stated = None if outcome is None else _name_ending(outcome)
        if self.agents is not None and process is not None and report is not None and stated is not None:
            self.agents.accept_stated(attempt, process, report, stated)
        if outcome is not None and outcome.limited:
            raise RateLimited(outcome.rate_limited, model=outcome.model)  # the error carries it to the pool
        if outcome is not None and (outcome.rejected or outcome.spent):
            raise CommandFailed(reason=f"its credential: {outcome.rejected or outcome.spent}", tail=captured.tail)
        if self.agents is not None and process is not None and report is not None:
            if outcome is not None and outcome.failed is not None:
                raise CommandFailed(reason=outcome.failed, tail=captured.tail)
            value = self.agents.evaluate(attempt, process, report, completed, captured)
            return value if outcome is None or not outcome.usage else {**value, "usage": dict(outcome.usage)}
        if status is None:
            raise Transient("the helper process that starts commands ended, and this command with it")
        code = os.waitstatus_to_exitcode(status)
        has_failed = outcome is not None and outcome.failed is not None
        if code and not has_failed:
            self._raise_if_refused(attempt)
        if code or has_failed:
            raise _failure(code, captured, outcome)
        value = {"exit": 0, "stdout": captured.stdout, "truncated": captured.truncated}
        if captured.stdout_head is not None:
            value["stdout_head"] = captured.stdout_head
        return value if outcome is None or not outcome.usage else {**value, "usage": dict(outcome.usage)}

    def _raise_if_refused(self, attempt: Attempt) -> None:
        """Raise RateLimited if the last call of a command that failed was refused because no key was open."""
        wire: WireVerdict | None = attempt.wire
        if wire is not None and wire.why in _LIMITS:
            wait = None if wire.until is None else max(0.0, wire.until - self._run.state.clock.wall())
            raise RateLimited(wait, model=wire.model)

    def _parse_outcome(self, attempt: Attempt, completed: Completed) -> CommandOutcome | None:
        try:
            if completed.outcome_error is not None:
                raise InvalidOutcome(completed.outcome_error)  # noqa: TRY301 - an unreadable file and invalid content are reported alike
            return parse_outcome(completed.outcome, self._run.state.clock.wall())
        except InvalidOutcome as error:
            self._warn_once(attempt, f"its AGENTOS_OUTCOME file is invalid and ignored: {error}")
            return None

    def _warn_once(self, attempt: Attempt, text: str) -> None:
        """Warn of a fault in an outcome file, once in a run: a script makes the same for every item."""
        text = self._run.state.masked(text)
        if text not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(text)
            log.warning("[COORDINATOR] %s: %s. This is logged once", attempt.item.id, text)

    def _report_outcome(self, attempt: Attempt, outcome: CommandOutcome) -> None:
        """Report what the outcome file says about usage and the key, whatever the item's outcome is."""
        stated = outcome.stated
        if outcome.ignored is not None:
            self._warn_once(attempt, f"AGENTOS_OUTCOME: {outcome.ignored}; it is ignored")
        if not isinstance(attempt, PooledAttempt) or attempt.grant is None:
            if stated and not attempt.usage_log:  # the gateway has seen what was used
                attempt.usage_log.set_total(None, None, stated.billed)
            return
        lease = attempt.item_lease()
        if stated:
            lease.settle_stated(stated.counted, stated.billed)
        if outcome.rejected is not None:
            lease.rejected(outcome.rejected)
        if outcome.spent is not None:
            lease.spent(outcome.spent)

    # -- slots --------------------------------------------------------------------------------------------------

    def take_slot(self) -> int:
        """Return the lowest slot number that no other running command has."""
        with self._slots_lock:
            if self._slots:
                return heapq.heappop(self._slots)
            self._max_slots += 1
            return self._max_slots

    def release_slot(self, slot: int) -> None:
        with self._slots_lock:
            heapq.heappush(self._slots, slot)


def _name_ending(outcome: CommandOutcome) -> Ending | None:
    """Return the ending that an outcome file states; None if it states only usage."""
    if outcome.limited:
        return Ending.PARKED if (outcome.rate_limited or 0.0) > PARKED_FROM else Ending.LIMITED
    if outcome.rejected is not None or outcome.spent is not None:
        return Ending.SPENT if outcome.rejected is None else Ending.REJECTED
    return None if outcome.failed is None else Ending.FAILED


def _not_started(program: str, number: int, host: str | None) -> Exception:
    there = "" if host is None else f" on {host}"
    if number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return Transient(f"the command could not be started{there}: {os.strerror(number)}")
    reasons = {
        errno.ENOENT: f"command not found{there}: {program}",
        errno.EACCES: f"{program} cannot be executed{there}: permission denied",
        errno.E2BIG: "its arguments and environment are too long: use --stdin, or AGENTOS_ITEM_FILE",
    }
    reason = reasons.get(number, f"{program} cannot be executed{there}: {os.strerror(number)}")
    return CommandFailed(reason=reason, exit=127 if number == errno.ENOENT else 126)


def _failure(code: int, captured: CapturedOutput, outcome: CommandOutcome | None) -> CommandFailed:
    number = -code if code < 0 else None
    if outcome is not None and outcome.failed is not None:
        reason = outcome.failed
    elif number is not None:
        reason = f"killed by {name_signal(number)}"
    else:
        reason = f"exit {code}"
        if captured.error_tail:
            reason += f": {captured.error_tail[-1]}"
    tail = captured.error_tail or captured.tail
    return CommandFailed(reason=reason, exit=None if number else code, signal=number, tail=tail)
