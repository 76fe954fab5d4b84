"""Attempts of a command that is an agent program: the session of each, what it reports, and what follows."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...costs.usage import NO_USAGE, Usage
from ...errors import CommandFailed, RateLimited, Transient
from ..agents.agent_protocol import AgentAdapter, AgentKey, AgentReader, AgentReport, Ending
from ..agents.agent_verdict import AgentVerdict, decide
from ..commands.command import Command
from ..commands.invocation import Completed, Invocation
from ..commands.template import fill_text
from ..core.records import Attempt
from ..execution.attempt import PooledAttempt
from ..execution.failure_facts import name_signal
from ..execution.journal_writer import CHANGED
from ..journal.entry_text import encode_row, replace_surrogates
from ..output.capture import CapturedOutput

if TYPE_CHECKING:
    from ..execution.engine_run import EngineRun

log = logging.getLogger("agentos")

_FINISHING = ("done", "failed", "reopened")  # kinds of entries after which an agent begins a new session
_LIMITS = frozenset({Ending.LIMITED, Ending.PARKED})
# A session that ended so is not resumed: its next turn would end alike.
_NOT_RESUMED = frozenset({Ending.CONTEXT, Ending.REFUSED})


@dataclass(frozen=True, slots=True)
class AgentSession:
    """The session of an item: its id, once that is known, how often it was resumed, and what it took so far."""

    id: str | None
    resumes: int = 0
    turns: int = 0
    cost: float = 0.0
    used: Usage = NO_USAGE
    value: dict[str, Any] | None = None  # of an agent that is done, while the script after it is not

    def encode(self, program: str, tree: str | None) -> str:
        """Return the session as the journal keeps it, with the path of its work tree."""
        kept = {"program": program, "session": self.id, "resumes": self.resumes, "turns": self.turns, "tree": tree}
        return json.dumps({**kept, "cost": self.cost, "used": self.used.to_json(), "value": self.value})

    def add(self, report: AgentReport) -> AgentSession:
        """Return the session with what one more process of it took."""
        turns, cost, used = report.turns or 0, report.cost or 0.0, report.usage or NO_USAGE
        if report.usage_is_total:
            return replace(self, turns=self.turns + turns, cost=max(cost, self.cost), used=used or self.used)
        return replace(self, turns=self.turns + turns, cost=self.cost + cost, used=self.used + used)


_NONE = AgentSession(None)


def decode_session(detail: str, program: str) -> AgentSession | None:
    """Return the session that a journal kept, if it is of this program."""
    try:
        kept = json.loads(detail)
        session, value = kept["session"], kept.get("value")
        if kept["program"] != program or not isinstance(session, (str, type(None))):
            return None
        used = Usage.from_json(kept.get("used"))
        value = value if isinstance(value, dict) else None
        return AgentSession(session, int(kept["resumes"]), int(kept["turns"]), float(kept["cost"]), used, value)
    except (ValueError, TypeError, KeyError):
        return None


def _subtract(usage: Usage, before: Usage) -> Usage:
    """Return what a session used since *before*; a counter that began anew counts as a whole."""
    names = ("input", "output", "cache_read", "cache_write", "reasoning")
    left = {name: getattr(usage, name) - getattr(before, name) for name in names}
    return usage if min(left.values()) < 0 else Usage(**left)


class AgentProcess:
    """One process of an agent: its session, its reader, and the view of its output."""

    def __init__(self, attempts: AgentAttempts, attempt: Attempt, session: AgentSession, reader: AgentReader) -> None:
        self.session = session
        self.usage = NO_USAGE  # of this process, once it has ended
        self.is_resumed = session.resumes > 0
        self.reader = reader
        self._attempts = attempts
        self._attempt = attempt
        self._has_warned = False

    def feed(self, line: str) -> Sequence[str]:
        """Read a line of standard output, and return what to show of it."""
        try:
            shown = self.reader.feed(line)
        except Exception as error:  # noqa: BLE001 - a line of an unknown form must not cost the item
            if not self._has_warned:
                self._has_warned = True
                kind = type(error).__name__  # its text may quote the line
                log.warning("[COORDINATOR] a line of %s cannot be read (%s)", self._attempt.item.id, kind)
            return [line]
        if self.session.id is None and self.reader.session is not None:
            self.session = replace(self.session, id=self.reader.session)
            self._attempts.note(self._attempt, self.session, wait=False)
        return shown


class AgentAttempts:
    """Starts and evaluates the processes of one agent program in one run."""

    def __init__(self, run: EngineRun, command: Command, adapter: AgentAdapter) -> None:
        self._run = run
        self._command = command
        self._adapter = adapter
        self._environ: Mapping[str, str] = os.environ if command.env is None else command.env
        self._sessions: dict[str, AgentSession] = {}
        self._login_until = 0.0  # when the limit of the program's own login ends, which all items without a key share
        for item_id, kind, detail in run.recorder.read_kinds(("agent_session", *_FINISHING)):
            session = decode_session(detail or "", adapter.name) if kind == "agent_session" else None
            if session is not None:
                self._sessions[item_id] = session
            elif kind != "done" and detail != CHANGED and self._sessions.get(item_id, _NONE).value is not None:
                continue  # only the script after it has to run again
            elif kind in _FINISHING:
                self._sessions.pop(item_id, None)

    def note(self, attempt: Attempt, session: AgentSession, *, wait: bool) -> None:
        """Remember the session of an item, and record it."""
        self._sessions[replace_surrogates(attempt.item.id)] = session
        trees = self._command.trees
        tree = None if trees is None else str(trees.path_for(attempt.item.id))
        row = encode_row(
            self._run.state.clock.wall(),
            "agent_session",
            attempt.item.id,
            attempt=attempt.number,
            credential=None if attempt.grant is None else attempt.grant.key.name,
            detail=self._run.state.masked(session.encode(self._adapter.name, tree)),
        )
        self._run.recorder.put_evidence(row, wait=wait)

    def find_value(self, attempt: Attempt) -> dict[str, Any] | None:
        """Return the value of an agent that is done, and is not to run again; None if it is not done."""
        return self._sessions.get(replace_surrogates(attempt.item.id), _NONE).value

    def note_value(self, attempt: Attempt, value: dict[str, Any]) -> None:
        """Record that the agent is done, before the script after it runs."""
        known = self._sessions.get(replace_surrogates(attempt.item.id), _NONE)
        self.note(attempt, replace(known, value=value), wait=True)

    def will_resume(self, attempt: Attempt) -> bool:
        """True if the item's next process resumes a session."""
        known = self._sessions.get(replace_surrogates(attempt.item.id))
        return known is not None and known.id is not None and self._adapter.most_resumes > 0

    def require_login(self, attempt: Attempt) -> None:
        """Raise ``RateLimited`` while the login is parked that an item without a key would use."""
        wait = self._login_until - self._run.state.clock.wall()
        if wait > 0:
            attempt.facts = {**attempt.facts, "ending": str(Ending.PARKED)}
            raise RateLimited(wait)

    def begin(self, attempt: Attempt, plain: Invocation) -> tuple[Invocation, AgentProcess]:
        """Return the process to start: it resumes the item's session, or begins one. The session is on record."""
        adapter, item = self._adapter, attempt.item
        known = self._sessions.get(replace_surrogates(item.id))
        resume = self.will_resume(attempt)
        if known is not None and resume and known.resumes >= adapter.most_resumes:
            limit = f"its session {known.id} was resumed {known.resumes} times and did not end; --resumes allows more"
            raise CommandFailed(reason=limit)
        if known is not None and resume:
            session = replace(known, resumes=known.resumes + 1)
            prompt = adapter.resume_prompt
        else:
            session = AgentSession(adapter.new_session())
            prompt = fill_text(self._command.prompt, item.payload, item.id, item.index + 1)
        start = adapter.build_start(
            plain.argv, prompt, session.id, resume=resume, key=self._describe_key(attempt), environ=self._environ
        )
        self.note(attempt, session, wait=True)
        environ = {**self._environ, **start.variables}
        reader = adapter.open_reader(environ, session.id if resume else None)
        invocation = replace(
            plain,
            argv=start.argv,
            prompt=start.stdin,
            stdin=start.stdin is not None,
            variables={**plain.variables, **start.variables},
            env_key=None if plain.credential is None else start.secret_variable or plain.env_key,
        )
        return invocation, AgentProcess(self, attempt, session, reader)

    def describe_begin(self, process: AgentProcess) -> str | None:
        """Return what the item's log says about a resumed session."""
        if not process.is_resumed:
            return None
        return f"session {process.session.id} resumed ({process.session.resumes})"

    def is_refused(self, attempt: Attempt, process: AgentProcess, report: AgentReport) -> bool:
        """True if the session could not be resumed. It is forgotten, and the item begins another."""
        if not process.is_resumed or not report.resume_refused or attempt.cancelled is not None:
            return False
        self._sessions.pop(replace_surrogates(attempt.item.id), None)
        return True

    def _describe_key(self, attempt: Attempt) -> AgentKey | None:
        if not isinstance(attempt, PooledAttempt) or attempt.grant is None:
            return None
        credential = attempt.pool.get_credential(attempt.grant.key.name)
        return AgentKey(credential.provider or attempt.grant.key.quota.provider, credential.base_url)

    # -- evaluation -----------------------------------------------------------------------------------------------

    def settle(self, attempt: Attempt, process: AgentProcess, report: AgentReport) -> None:
        """Account for the tokens that the program reports."""
        usage, before = report.usage or NO_USAGE, process.session.used
        process.session = process.session.add(report)
        if report.usage_is_total:
            usage = _subtract(usage, before)
        process.usage = usage
        if not usage or self._command.access is not None:  # the gateway has counted each request
            return
        if isinstance(attempt, PooledAttempt) and attempt.grant is not None:
            counted = {"input_tokens": float(usage.total - usage.output), "output_tokens": float(usage.output)}
            attempt.item_lease().settle_stated(counted, usage)
        else:
            attempt.usage_log.set_total(None, None, usage)

    def evaluate(
        self,
        attempt: Attempt,
        process: AgentProcess,
        report: AgentReport,
        completed: Completed,
        captured: CapturedOutput,
    ) -> dict[str, Any]:
        """Return the value of an agent that is done; raise for any other ending."""
        code = None if completed.status is None else os.waitstatus_to_exitcode(completed.status)
        verdict = decide(report, attempt.wire, code, now=self._run.state.clock.wall())
        facts = self._conclude(attempt, process, report, verdict)
        if verdict.ending is Ending.DONE:
            return {"answer": report.answer, "exit": 0 if code is None else code, **facts}
        raise self._build_error(attempt, verdict, report, code, captured)

    def accept_stated(self, attempt: Attempt, process: AgentProcess, report: AgentReport, stated: Ending) -> None:
        """Record the ending that the command stated itself, which is not done; the caller raises for it."""
        self._conclude(attempt, process, report, decide(report, None, None, now=0.0, stated=stated))

    def _conclude(
        self, attempt: Attempt, process: AgentProcess, report: AgentReport, verdict: AgentVerdict
    ) -> dict[str, Any]:
        """Return the facts of the ending. If that is not done, they and the session are recorded."""
        session = process.session
        facts: dict[str, Any] = {
            "ending": str(verdict.ending),
            "session": session.id,
            "resumes": session.resumes,
            "turns": session.turns or None,
            "cost_usd": round(session.cost, 6) or None,
            "disagreement": verdict.disagreement,
        }
        facts = {name: value for name, value in facts.items() if value is not None}
        if verdict.disagreement is not None:
            log.info("[COORDINATOR] %s: %s", attempt.item.id, verdict.disagreement)
        if verdict.ending is Ending.DONE:
            self._sessions[replace_surrogates(attempt.item.id)] = (
                session  # recorded with the value, if a script follows
            )
            return facts
        attempt.facts = {**attempt.facts, **facts}
        if process.is_resumed and verdict.ending in _LIMITS and not process.usage:
            # It got no answer, so the session is where it was: waiting for a limit does not use up resumes.
            session = replace(session, resumes=session.resumes - 1)
        self.note(attempt, session, wait=False)
        if verdict.ending in _NOT_RESUMED:
            self._sessions.pop(replace_surrogates(attempt.item.id), None)
        return facts

    def _build_error(
        self, attempt: Attempt, verdict: AgentVerdict, report: AgentReport, code: int | None, captured: CapturedOutput
    ) -> Exception:
        ending, reason = verdict.ending, verdict.reason
        if ending in _LIMITS:
            until = verdict.until
            if until is not None and attempt.grant is None and self._command.access is None:
                self._login_until = max(until, self._login_until)
            seconds = None if until is None else max(0.0, until - self._run.state.clock.wall())
            return RateLimited(seconds, model=report.model)
        told = f"{ending}: {reason}" if reason and ending is not Ending.FAILED else reason or str(ending)
        if ending is Ending.OVERLOADED or code is None:
            return Transient(told)
        if isinstance(attempt, PooledAttempt) and attempt.grant is not None:
            if ending is Ending.REJECTED:
                attempt.item_lease().rejected(reason or str(ending))
            elif ending is Ending.SPENT:
                attempt.item_lease().spent(reason or str(ending))
        number = -code if code < 0 else None
        if ending is Ending.FAILED and not reason:
            told = f"killed by {name_signal(number)}" if number is not None else f"exit {code}"
            if captured.error_tail and number is None:
                told += f": {captured.error_tail[-1]}"
        tail = captured.error_tail or captured.tail
        return CommandFailed(reason=told, exit=None if number else code, signal=number, tail=tail)
