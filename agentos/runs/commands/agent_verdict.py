"""Decide how an agent's attempt ended, from all that is known of it, in the order in which it is trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...providers.signal import PARKED_FROM, Event
from .agent_protocol import AgentReport, Ending, WireVerdict

_ENDINGS = {
    Event.LIMITED: Ending.LIMITED,
    Event.RAMP: Ending.LIMITED,
    Event.PARKED: Ending.PARKED,
    Event.NOT_ENTITLED: Ending.REJECTED,
    Event.NEVER_FITS: Ending.CONTEXT,
    Event.MONEY_GONE: Ending.SPENT,
    Event.KEY_DEAD: Ending.REJECTED,
    Event.BUSY: Ending.OVERLOADED,
    Event.NETWORK: Ending.OVERLOADED,
    Event.CALLER: Ending.FAILED,
}


@dataclass(frozen=True, slots=True)
class AgentVerdict:
    """The ending that counts, and the sentence that says so where the sources disagree."""

    ending: Ending
    reason: str
    until: float | None = None
    disagreement: str | None = None


def name_ending(event: Event) -> Ending:
    """Return the ending that a provider's answer means."""
    return _ENDINGS.get(event, Ending.DONE)


def decide(report: AgentReport, wire: WireVerdict | None, code: int | None, *, now: float) -> AgentVerdict:
    """Decide by the program's structured result, of which a success stands; then the wire; then the exit code.

    The wire decides where the program has no structure or names no cause, and gives the end of a limit. *code* is None
    if the exit code is not known.
    """
    seen = None if wire is None else name_ending(wire.event)
    refused = seen is not None and seen is not Ending.DONE
    if report.ending is Ending.DONE:
        against = f"it reports that it is done; its last call was {_tell(wire)}" if refused else None
        return AgentVerdict(Ending.DONE, report.reason, disagreement=against)
    until = report.until if report.until is not None or wire is None or not refused else wire.until
    if report.ending is not None and (report.ending is not Ending.FAILED or not refused):
        against = None
        if seen is not None and seen is not report.ending and _kind(seen) is not _kind(report.ending):
            against = f"it reports {report.ending}; its last call was {_tell(wire)}"
        return _park(AgentVerdict(report.ending, report.reason, until, against), now)
    if refused and seen is not None:
        against = None if code != 0 else f"it ended with exit code 0; its last call was {_tell(wire)}"
        reason = report.reason or f"its last call was {_tell(wire)}"
        return _park(AgentVerdict(seen, reason, until, against), now)
    if code == 0:
        return AgentVerdict(Ending.DONE, report.reason)
    return AgentVerdict(Ending.FAILED, report.reason)


def _park(verdict: AgentVerdict, now: float) -> AgentVerdict:
    """A limit that lasts is a parked one."""
    if verdict.ending is Ending.LIMITED and verdict.until is not None and verdict.until - now > PARKED_FROM:
        return replace(verdict, ending=Ending.PARKED)
    return verdict


def _kind(ending: Ending) -> Ending:
    return Ending.LIMITED if ending is Ending.PARKED else ending


def _tell(wire: WireVerdict | None) -> str:
    if wire is None or wire.event is Event.OK:
        return "answered"
    status = "" if wire.status is None else f" (HTTP {wire.status})"
    return f"refused: {name_ending(wire.event)}{status}"
