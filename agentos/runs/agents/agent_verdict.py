"""Decide how an agent's attempt ended, from all that is known of it, in the order in which it is trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...providers.signal import PARKED_FROM, Event
from ...providers.wire_verdict import WireVerdict
from .agent_protocol import AgentReport, Ending

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


_WIRE = {
    "limited": Ending.LIMITED,
    "parked": Ending.PARKED,
    "spent": Ending.SPENT,
    "dead": Ending.REJECTED,
    "busy": Ending.OVERLOADED,
    "network": Ending.OVERLOADED,
    "context": Ending.CONTEXT,
}


_CAUSES = frozenset(_WIRE.values())


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


def decide(
    report: AgentReport, wire: WireVerdict | None, code: int | None, *, now: float, stated: Ending | None = None
) -> AgentVerdict:
    """Decide by what the command stated; then the program's result, of which a success stands; the wire; the exit code.

    *stated* is what its outcome file says. *wire* is what the gateway saw, if the last call was refused. It decides
    where the program has no structure or names no cause, and gives the end of a limit. *code* is None if the exit code
    is not known.
    """
    if stated is not None:
        agrees = report.ending is None or _kind(report.ending) is _kind(stated)
        against = None if agrees else f"its AGENTOS_OUTCOME says {stated}; it reports {report.ending}"
        return AgentVerdict(stated, report.reason, disagreement=against)
    seen = None if wire is None else _WIRE.get(wire.why, Ending.FAILED)
    if report.ending is Ending.DONE:
        against = None
        if wire is not None:
            against = f"it reports that it is done; its last call was {_tell(wire)}"
        elif code:
            against = f"it reports that it is done; it {_tell_end(code)}"
        return AgentVerdict(Ending.DONE, report.reason, disagreement=against)
    until = report.until if report.until is not None or wire is None else wire.until
    if report.ending is not None and (report.ending is not Ending.FAILED or seen is None):
        against = None if code != 0 else f"it reports {report.ending}; it {_tell_end(code)}"
        if wire is not None and seen in _CAUSES and _kind(seen) is not _kind(report.ending):
            against = f"it reports {report.ending}; its last call was {_tell(wire)}"
        ending = Ending.PARKED if seen is Ending.PARKED and report.ending is Ending.LIMITED else report.ending
        return _park(AgentVerdict(ending, report.reason, until, against), now)
    if wire is not None and seen is not None:
        against = None if code != 0 else f"it {_tell_end(code)}; its last call was {_tell(wire)}"
        return _park(AgentVerdict(seen, report.reason or f"its last call was {_tell(wire)}", until, against), now)
    return AgentVerdict(Ending.DONE if code == 0 else Ending.FAILED, report.reason)


def _park(verdict: AgentVerdict, now: float) -> AgentVerdict:
    """A limit that lasts is a parked one."""
    if verdict.ending is Ending.LIMITED and verdict.until is not None and verdict.until - now > PARKED_FROM:
        return replace(verdict, ending=Ending.PARKED)
    return verdict


def _kind(ending: Ending) -> Ending:
    return Ending.LIMITED if ending is Ending.PARKED else ending


def _tell_end(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _tell(wire: WireVerdict) -> str:
    return f"refused: {_WIRE.get(wire.why, wire.why)} (HTTP {wire.status})"
