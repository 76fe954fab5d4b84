"""Build the full report of a run from its folder, for people and programs.

It works while the run is running, after a crash, and on a damaged journal: then it covers the intact beginning and says
what is damaged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agentos.errors import JournalUnavailable

from ...costs.usage import NO_USAGE, Usage
from ..core.states import Trouble
from ..exports.event_log import EVENTS_NAME, read_events
from ..exports.results_file import RESULTS_NAME
from ..journal.entry_kinds import RecordedState
from ..journal.journal_files import JournalFiles, locate_files
from ..journal.known_items import KnownItems
from .agent_items import AgentItem, list_agents
from .failure_causes import FailureGroup
from .gateway_requests import RequestTotals, sum_requests
from .journal_access import has_closed, read_journal, read_verified
from .journal_scan import EntryCollector, JournalScan, KeyTotals, SessionTotals
from .key_time import KeyTime, read_key_time
from .key_waits import WaitingTime, sum_waiting
from .run_card import RunCard, read_card
from .speed_bounds import SpeedBounds, read_speed_bounds
from .status import RunStatus, find_status

_IDS: Final = 20  # ids per state, by default


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session of the run. ``ended_at`` is None while it is running; ``ended`` says how it ended."""

    number: int
    started_at: float
    ended_at: float | None
    ended: str
    finished: int  # items that became done or failed in it
    pid: int | None
    host: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the session as a JSON object."""
        return {
            "number": self.number,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "ended": self.ended,
            "finished": self.finished,
            "pid": self.pid,
            "host": self.host,
        }


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The use of one credential: items done and failed, attempts by what stopped them, seconds of use.

    ``cooling`` are the seconds in which it could not be used, ``waited`` those that all workers together lost by that;
    ``usage`` the tokens that its calls used.
    """

    name: str
    done: int
    failed: int
    retried: int
    limited: int
    seconds: float
    waited: float
    rejected: int = 0
    unreachable: int = 0
    usage: Usage = NO_USAGE
    cooling: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the use of the credential as a JSON object."""
        return {
            "name": self.name,
            "done": self.done,
            "failed": self.failed,
            "retried": self.retried,
            "limited": self.limited,
            "seconds": self.seconds,
            "waited": self.waited,
            "rejected": self.rejected,
            "unreachable": self.unreachable,
            "usage": self.usage.to_json(),
            "cooling": self.cooling,
        }


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations of the last attempts of done items, in seconds."""

    p50: float
    p95: float
    longest: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Durations | None:
        """Return the percentiles of *seconds*; None if there are none."""
        ordered = sorted(seconds)
        if not ordered:
            return None
        last = len(ordered) - 1
        return cls(ordered[round(last * 0.5)], ordered[round(last * 0.95)], ordered[last])

    def as_json(self) -> dict[str, Any]:
        """Return the durations as a JSON object."""
        return {"p50": self.p50, "p95": self.p95, "longest": self.longest}


@dataclass(frozen=True, slots=True)
class RunReport:
    """The state, counts, durations, failures and keys of a run.

    ``total`` is None while the length of its input is not known. ``counts`` has every state; ``not_begun`` are pending
    items without any entry. ``wall`` is the running time of all sessions together, and ``rate`` the items finished per
    second of it. ``limited``, ``rejected``, ``unreachable`` and ``interrupted`` count attempts by what stopped them;
    ``unanswered`` those that timed out or got no answer. ``retry_cause`` is the most frequent reason of retries, and
    ``bounds`` what bounded the speed.
    ``other_failures`` are failed items with causes that are not in ``failures``. ``unfinished`` has the first ids of
    each state. ``damage`` says what is wrong with the journal: then everything else covers the part before it.
    ``usage`` has the tokens that all attempts used. ``redacted`` counts values from which a secret was removed,
    ``not_json`` those of which the journal has only the ``repr``.
    """

    name: str
    folder: str
    state: RunStatus
    total: int | None
    counts: Mapping[str, int]
    not_begun: int
    sessions: tuple[SessionSummary, ...]
    keys: tuple[KeyUse, ...]
    attempts: int
    retried: int
    limited: int
    durations: Durations | None
    wall: float
    rate: float | None
    failures: tuple[FailureGroup, ...]
    other_failures: int
    waiting: WaitingTime
    unfinished: Mapping[str, tuple[str, ...]]
    damage: str | None
    card: RunCard | None
    rejected: int = 0
    unreachable: int = 0
    usage: Usage = NO_USAGE
    key_time: KeyTime = field(default_factory=KeyTime)
    results: str | None = None  # the path of its results file, if there is one
    redacted: int = 0
    not_json: int = 0
    interrupted: int = 0
    unanswered: int = 0
    retry_cause: FailureGroup | None = None
    requests: RequestTotals = field(default_factory=RequestTotals)  # through the gateway
    agents: tuple[AgentItem, ...] = ()
    bounds: SpeedBounds = field(default_factory=SpeedBounds)

    @property
    def left(self) -> int:
        """Return the number of known items that are neither done nor failed."""
        return sum(self.counts.values()) - self.counts[RecordedState.DONE] - self.counts[RecordedState.FAILED]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "name": self.name,
            "folder": self.folder,
            "state": self.state.as_json(),
            "total": self.total,
            "counts": dict(self.counts),
            "not_begun": self.not_begun,
            "sessions": tuple(each.as_json() for each in self.sessions),
            "keys": tuple(each.as_json() for each in self.keys),
            "attempts": self.attempts,
            "retried": self.retried,
            "limited": self.limited,
            "durations": None if self.durations is None else self.durations.as_json(),
            "wall": self.wall,
            "rate": self.rate,
            "failures": tuple(each.as_json() for each in self.failures),
            "other_failures": self.other_failures,
            "waiting": self.waiting.as_json(),
            "unfinished": dict(self.unfinished),
            "damage": self.damage,
            "card": None if self.card is None else self.card.as_json(),
            "left": self.left,
            "rejected": self.rejected,
            "unreachable": self.unreachable,
            "usage": self.usage.to_json(),
            "key_time": self.key_time.as_json(),
            "results": self.results,
            "redacted": self.redacted,
            "not_json": self.not_json,
            "interrupted": self.interrupted,
            "unanswered": self.unanswered,
            "retry_cause": None if self.retry_cause is None else self.retry_cause.as_json(),
            "requests": self.requests.as_json(),
            "agents": [agent.as_json() for agent in self.agents],
            "bounds": self.bounds.as_json(),
        }


def build_report(folder: Path, *, ids: int = _IDS, wall: Callable[[], float] = time.time) -> RunReport:
    """Read the report of the run in *folder*, with at most *ids* ids of unfinished items of each state.

    Raises JournalUnavailable if there is no journal, and another JournalError if nothing in it can be read.
    """
    return scan_run(folder, lambda: None, ids=ids, wall=wall)[0]


def scan_run(
    folder: Path,
    make_collector: Callable[[], EntryCollector | None],
    *,
    ids: int = _IDS,
    wall: Callable[[], float] = time.time,
) -> tuple[RunReport, JournalScan]:
    """Read the report as ``build_report`` does, and the scan of the same entries, whose collector has all items.

    *make_collector* is called for each read of the journal: an interrupted one has already collected some entries.
    """
    files = locate_files(folder)
    report, tally = _build_report(folder, files, make_collector, ids, wall)
    if report.state.word == "crashed" and report.damage is None and has_closed(files):
        report, tally = _build_report(folder, files, make_collector, ids, wall)
    return report, tally


def _build_report(
    folder: Path,
    files: JournalFiles,
    make_collector: Callable[[], EntryCollector | None],
    ids: int,
    wall: Callable[[], float],
) -> tuple[RunReport, JournalScan]:
    contents = read_verified(files)
    if contents is None:
        raise JournalUnavailable(path=str(files.db), detail="it does not exist: the run has not started")
    # A new scan for every read: an interrupted one has already counted some entries.
    tally = (
        read_journal(files, lambda connection: JournalScan(contents, ids, make_collector()).scan(connection))
        if contents.position.seq
        else JournalScan(contents, ids, make_collector())
    )
    counts = {state.value: count for state, count in contents.known.counts().items()}
    last = tally.sessions[-1] if tally.sessions else None
    not_begun = _not_begun(tally, last)
    counts[RecordedState.PENDING] += not_begun
    counts[RecordedState.FAILED] += tally.refused
    contents.known = tally.known = KnownItems()  # fifty megabytes for a million items, before durations are sorted
    waiting = sum_waiting(read_events(folder / EVENTS_NAME))
    key_time = read_key_time(read_events(folder / EVENTS_NAME))
    unfinished = sum(counts.values()) - counts[RecordedState.DONE] - counts[RecordedState.FAILED]
    state = find_status(
        files.lock, last_kind=contents.last_kind, note=None if last is None else last.note, left=unfinished
    )
    sessions = tuple(_session(each, state if each is last else None) for each in tally.sessions)
    now = wall()
    on = sum(max(0.0, (now if each.ended_at is None else each.ended_at) - each.started_at) for each in sessions)
    finished = sum(each.finished for each in sessions)
    report = RunReport(
        name=folder.name,
        folder=str(folder),
        state=state,
        total=_total(tally, last, state, sum(counts.values())),
        counts=counts,
        not_begun=not_begun,
        sessions=sessions,
        keys=_keys(tally.keys, waiting, key_time),
        key_time=key_time,
        attempts=tally.attempts,
        retried=tally.ends["retry"],
        redacted=tally.redacted,
        not_json=tally.not_json,
        limited=tally.troubles[Trouble.LIMITED],
        rejected=tally.troubles[Trouble.REJECTED],
        unreachable=tally.troubles[Trouble.UNREACHABLE],
        durations=Durations.of(tally.durations),
        wall=on,
        rate=finished / on if finished and on > 0 else None,
        failures=tally.causes.list_groups(),
        other_failures=tally.causes.others,
        waiting=waiting,
        unfinished={state.value: tuple(found) for state, found in tally.unfinished.items()},
        damage=contents.damage,
        card=read_card(folder),
        usage=tally.usage,
        interrupted=tally.count_interrupted(running=state.word == "running"),
        unanswered=tally.unanswered,
        bounds=read_speed_bounds(read_events(folder / EVENTS_NAME)),
        retry_cause=next(iter(tally.retry_causes.list_groups()), None),
        requests=sum_requests(files) if contents.position.seq else RequestTotals(),
        agents=tuple(list_agents(files)) if contents.position.seq else (),
        results=str(folder / RESULTS_NAME) if (folder / RESULTS_NAME).exists() else None,
    )
    return report, tally


def _not_begun(tally: JournalScan, last: SessionTotals | None) -> int:
    if tally.never_begun is not None:
        return tally.never_begun
    if last is None or last.total is None:
        return 0
    return max(0, last.total - len(tally.known))


def _total(tally: JournalScan, last: SessionTotals | None, state: RunStatus, seen: int) -> int | None:
    """Return the number of items, if the input is known to its end: a list, or an exhausted iterator."""
    listed = tally.never_begun is not None or (last is not None and last.total is not None)
    return seen if listed or state.word == "finished" else None


def _session(each: SessionTotals, state: RunStatus | None) -> SessionSummary:
    """Build the summary of one session; *state* is that of the run if this is its last session."""
    running = state is not None and state.word == "running"
    if state is not None:
        ended = str(state)
    elif not each.closed:
        ended = "crashed"
    else:
        ended = each.note or "ended"
    ended_at = None if running else each.last_at
    return SessionSummary(each.number, each.started_at, ended_at, ended, each.finished, each.pid, each.host)


def _keys(keys: Mapping[str, KeyTotals], waiting: WaitingTime, key_time: KeyTime) -> tuple[KeyUse, ...]:
    """Return the use of each key by name, including keys that were only waited for."""
    names = sorted({*keys, *(name for name in waiting.by_key if name), *key_time.cooling})
    nothing = KeyTotals()
    return tuple(
        KeyUse(
            name,
            key.done,
            key.failed,
            key.retried,
            key.limited,
            key.seconds,
            waiting.by_key.get(name, 0.0),
            key.rejected,
            key.unreachable,
            key.used.read(),
            key_time.cooling.get(name, 0.0),
        )
        for name in names
        for key in [keys.get(name, nothing)]
    )
