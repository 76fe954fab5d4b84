"""Record the operations of several processes on one store, and check that a correct store could have answered so."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

NEVER = math.inf

Kind = Literal["acquire", "release", "renew"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of one process. One that never returned has no answer: the process was killed, or the call raised."""

    process: str
    kind: Kind
    credential: str | None  # None: an acquire that got nothing, and that any credential would have served
    token: int | None  # an acquire that got nothing, or that never returned, has none
    invoked_at: float
    returned_at: float | None = None
    answer: bool | None = None  # of an acquire: whether it got a lease
    session: str | None = None  # the name the store knows the process by, where that is not its label

    def __post_init__(self) -> None:
        if (self.answer is None) is not (self.returned_at is None):
            raise ValueError(f"an operation has an answer if and only if it returned: {self}")
        if self.returned_at is not None and self.returned_at < self.invoked_at:
            raise ValueError(f"an operation returns after it was invoked: {self}")
        if self.kind != "acquire":
            if self.token is None:
                raise ValueError(f"a {self.kind} needs a token: {self}")
        elif bool(self.answer) is not (self.token is not None):
            raise ValueError(f"an acquire has a token if and only if it got a lease: {self}")
        if self.token is not None and self.credential is None:
            raise ValueError(f"a lease is a lease of a credential: {self}")

    @property
    def owner(self) -> str:
        return self.session or self.process

    @property
    def until(self) -> float:
        return NEVER if self.returned_at is None else self.returned_at


@dataclass(frozen=True, slots=True)
class History:
    """The recorded operations, and from which instant each lease may end without being released."""

    operations: Sequence[Operation]
    may_expire: Mapping[int, float] = field(default_factory=dict)  # by token; a lease that is not here never expires

    def by_credential(self) -> dict[str, History]:
        """One history a credential. An open acquire that named none may have got any, and so is in each."""
        names = {op.credential: None for op in self.operations if op.credential is not None}
        parts: dict[str, list[Operation]] = {name: [] for name in names}
        for op in self.operations:
            if op.credential is not None:
                parts[op.credential].append(op)
            elif op.answer is None:
                for part in parts.values():
                    part.append(op)
        return {name: History(part, self.may_expire) for name, part in parts.items()}


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """One line of the store's own order: a lease was granted, or it ended."""

    seq: int
    op: Literal["granted", "ended"]
    token: int
    credential: str
    session: str


# A renewal must update its row: INSERT OR REPLACE would be seen as a second grant of the token.
TRIGGERS = """
CREATE TABLE history(seq INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, token INTEGER, credential INTEGER, session TEXT);
CREATE TRIGGER lease_granted AFTER INSERT ON leases BEGIN
    INSERT INTO history(op, token, credential, session) VALUES ('granted', new.token, new.credential, new.session);
END;
CREATE TRIGGER lease_ended AFTER DELETE ON leases BEGIN
    INSERT INTO history(op, token, credential, session) VALUES ('ended', old.token, old.credential, old.session);
END;
"""


def store_order(rows: Iterable[tuple[int, str, int, int, str]], names: Mapping[int, str]) -> list[StoreEvent]:
    """The rows (seq, op, token, credential, session) of the table ``history``, with the names of the credentials."""
    events = []
    for seq, op, token, credential, session in sorted(rows):
        if op not in ("granted", "ended"):
            raise ValueError(f"line {seq} of the store's order says {op!r}, not granted or ended")
        events.append(StoreEvent(seq, "granted" if op == "granted" else "ended", token, names[credential], session))
    return events


class Recorder:
    """Writes what one process does, a line before each operation and a line after it; survives its own kill -9."""

    def __init__(self, path: Path, process: str) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def invoked(
        self, kind: Kind, credential: str | None = None, token: int | None = None, session: str | None = None
    ) -> int:
        """Just before the operation. Returns the number to give to ``returned``."""
        number = next(self._numbers)
        asked = {"kind": kind, "credential": credential, "token": token, "session": session}
        self._write("invoked", process=self._process, number=number, **asked, at=time.monotonic())
        return number

    def returned(self, number: int, answer: bool, credential: str | None = None, token: int | None = None) -> None:
        """Just after it. An acquire says here what it got; not called for one that raised, as it may have got it."""
        at = time.monotonic()
        self._write(
            "returned", process=self._process, number=number, answer=answer, credential=credential, token=token, at=at
        )

    def may_expire(self, token: int, at: float) -> None:
        """The lease may be ended from *at* on: the instant its last renewal that returned was invoked, + its ttl."""
        self._write("may_expire", token=token, at=at)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, event: str, **fields: object) -> None:
        os.write(self._file, (json.dumps({"event": event, **fields}) + "\n").encode())


def to_lines(history: History) -> list[str]:
    """The lines that recorders would have written of this history, in order of time."""
    events: list[tuple[float, dict[str, object]]] = []
    for number, op in enumerate(history.operations):
        asked = {
            "kind": op.kind,
            "credential": op.credential,
            "token": None if op.kind == "acquire" else op.token,
            "session": op.session,
        }
        key = {"process": op.process, "number": number}
        events.append((op.invoked_at, {"event": "invoked", **key, **asked, "at": op.invoked_at}))
        if op.returned_at is not None:
            answered = {"answer": op.answer, "credential": op.credential, "token": op.token, "at": op.returned_at}
            events.append((op.returned_at, {"event": "returned", **key, **answered}))
    for token, at in history.may_expire.items():
        events.append((at, {"event": "may_expire", "token": token, "at": at}))
    events.sort(key=lambda event: event[0])
    return [json.dumps(line) for _, line in events]


def from_lines(*files: Iterable[str]) -> History:
    """One history from the lines of each process. A last line that was torn by a kill counts as not written.

    Each renewal puts the end of a lease off, so of several ``may_expire`` of one token the latest counts.
    """
    operations: dict[tuple[str, int], Operation] = {}
    may_expire: dict[int, float] = {}
    for event in itertools.chain.from_iterable(map(_parsed, files)):
        if event["event"] == "may_expire":
            token, at = event["token"], event["at"]
            may_expire[token] = max(at, may_expire.get(token, at))
            continue
        key = (event["process"], event["number"])
        if event["event"] == "invoked":
            if key in operations:
                raise ValueError(f"operation {key[1]} of {key[0]} was invoked twice: give each process its own label")
            operations[key] = Operation(
                key[0], event["kind"], event["credential"], event["token"], event["at"], session=event["session"]
            )
        else:
            op = operations[key]
            operations[key] = replace(
                op,
                answer=event["answer"],
                returned_at=event["at"],
                credential=event["credential"] or op.credential,
                token=event["token"] if op.kind == "acquire" else op.token,
            )
    return History(sorted(operations.values(), key=lambda op: op.invoked_at), may_expire)


def _parsed(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    told = list(lines)
    for number, line in enumerate(told, start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number < len(told):  # only the last line can have been cut short by a kill
                raise ValueError(f"line {number} of {len(told)} of a recording is not JSON: {line!r}") from error


def read(paths: Iterable[Path]) -> History:
    """The recordings of all processes, one file each."""
    return from_lines(*(path.read_text(encoding="utf-8", errors="replace").splitlines() for path in paths))


def l1_by_store_order(events: Sequence[StoreEvent], slots: Mapping[str, int]) -> str | None:
    """L1 and L2 in the store's own order: never more leases in force than slots, and tokens only grow.

    Tokens are the primary key of one table for all credentials, so they grow over all of them together.
    """
    in_force: dict[int, StoreEvent] = {}
    granted: set[int] = set()
    held: Counter[str] = Counter()
    largest = -1
    for event in events:
        where = f"event {event.seq}: lease {event.token} of {event.credential}"
        if event.op == "ended":
            grant = in_force.pop(event.token, None)
            if grant is None:
                return f"{where} ended {'a second time' if event.token in granted else 'and was never granted'}"
            if (grant.credential, grant.session) != (event.credential, event.session):
                return f"{where} ended for {event.session}, but was {grant.credential}'s, granted to {grant.session}"
            held[event.credential] -= 1
            continue
        if event.token in granted:
            return f"{where} was granted to {event.session}, but that token had been granted before"
        if event.token <= largest:
            return f"{where} was granted after lease {largest}"
        if event.credential not in slots:
            return f"{where} was granted, but nobody knows that credential"
        held[event.credential] += 1
        if held[event.credential] > slots[event.credential]:
            others = [token for token, grant in in_force.items() if grant.credential == event.credential]
            return f"{where} was granted with leases {others} in force and {slots[event.credential]} slots"
        in_force[event.token] = event
        granted.add(event.token)
        largest = event.token
    return None


@dataclass(slots=True)
class _Lease:
    """Bounds on the instants of a lease's grant and end, derived from the operations on its token."""

    token: int
    asked: Operation | None = None
    released: Operation | None = None
    seen: list[Operation] = field(default_factory=list)  # renewals that found it in force
    missed: list[Operation] = field(default_factory=list)  # renewals and releases that did not
    may_end_from: float = NEVER  # unless it was given back: by expiring, or by a release that never returned

    @property
    def ends_from(self) -> float:
        """It was surely in force until then, if it was granted before."""
        end = self.may_end_from if self.released is None else self.released.invoked_at
        return max([end, *(op.invoked_at for op in self.seen)])


def linearizable(history: History, slots: int) -> str | None:
    """Return whether some order of the operations on ONE credential, true to real time, explains every answer."""
    if slots < 1:
        raise ValueError(f"slots must be 1 or more, not {slots}")
    leases = _by_token(history)
    if isinstance(leases, str):
        return leases
    in_force: list[tuple[float, int]] = []  # (ends at, token), the n that end last
    latest, before = -NEVER, -1
    for lease in leases:
        assert lease.asked is not None
        at, why = lease.asked.invoked_at, "it was not asked for"
        if latest > at:
            at, why = latest, f"lease {before}, of a smaller token, was not granted"
        if len(in_force) == slots:
            free_at, holder = heapq.heappop(in_force)
            if free_at > at:
                at, why = free_at, f"no slot of {slots} was free: of those in force lease {holder} ends first, but not"
        ends_from = lease.ends_from
        for op in lease.missed:
            if ends_from > op.until and op.invoked_at > at:
                at, why = op.invoked_at, f"a {op.kind} did not find it, and it had not ended: it was not granted"
        if at > lease.asked.until:
            return f"lease {lease.token} was granted {_when(lease.asked)}, but {why} before {_instant(at)}"
        for op in lease.seen:
            if at > op.until:
                return f"lease {lease.token} was renewed {_when(op)}, but {why} before {_instant(at)}"
        end = max(at, ends_from)
        if lease.released is not None and end > lease.released.until:
            seen = f"it was in force at {_instant(end)}" if end > at else f"{why} before {_instant(at)}"
            return f"lease {lease.token} was given back {_when(lease.released)}, but {seen}"
        heapq.heappush(in_force, (end, lease.token))
        latest, before = at, lease.token
    return None


def _by_token(history: History) -> list[_Lease] | str:
    """The leases that were granted for sure, by token."""
    leases: dict[int, _Lease] = {}
    open_acquires: list[Operation] = []
    for op in history.operations:
        if op.token is None:
            if op.answer is None:
                open_acquires.append(op)
            continue
        lease = leases.get(op.token)
        if lease is None:
            lease = leases[op.token] = _Lease(op.token, may_end_from=history.may_expire.get(op.token, NEVER))
        if op.kind == "acquire":
            if lease.asked is not None:
                return f"lease {op.token} was granted twice: {_when(lease.asked)} and {_when(op)}"
            lease.asked = op
        elif op.answer is False:
            lease.missed.append(op)
        elif op.kind == "renew":
            if op.answer:
                lease.seen.append(op)
        elif op.answer is None:
            lease.may_end_from = min(lease.may_end_from, op.invoked_at)
        elif lease.released is not None:
            return f"lease {op.token} was given back twice: {_when(lease.released)} and {_when(op)}"
        else:
            lease.released = op
    # Tokens that were in force, but that no process was given, belong to acquires that never returned. Which to which:
    # those have no upper bound, so if any choice will do, the one in order of token and of invocation does.
    open_acquires.sort(key=lambda op: op.invoked_at)
    unasked = iter(open_acquires)
    granted: list[_Lease] = []
    for token in sorted(leases):
        lease = leases[token]
        proof = lease.released or next(iter(lease.seen), None)
        if lease.asked is None and proof is not None:
            lease.asked = next(unasked, None)
            if lease.asked is None:
                return f"lease {token} was found in force by a {proof.kind} {_when(proof)}, but nobody was granted it"
        if lease.asked is not None:
            granted.append(lease)
    return granted


def whole(recording: History, slots: Mapping[str, int], order: Sequence[StoreEvent] | None = None) -> str | None:
    """Every check there is: each credential by itself, the store's order if there is one, and whether the two agree."""
    for name, history in recording.by_credential().items():
        if name not in slots:
            return f"{name} was used, but nobody knows that credential"
        found = linearizable(history, slots[name])
        if found is not None:
            return f"{name}: {found}"
    if order is None:
        return None
    return l1_by_store_order(order, slots) or _told_alike(recording, order) or _at_those_instants(recording, order)


def _told_alike(recording: History, order: Sequence[StoreEvent]) -> str | None:
    """Check that the processes' records and the store's records contain the same events."""
    granted = {event.token: event for event in order if event.op == "granted"}
    ended = {event.token for event in order if event.op == "ended"}
    told: set[int] = set()
    open_acquires: Counter[str] = Counter()
    for op in recording.operations:
        if op.token is None:
            open_acquires[op.owner] += op.answer is None
        elif op.kind == "acquire":
            grant = granted.get(op.token)
            if grant is None:
                return f"{op.owner} was granted lease {op.token} {_when(op)}, but the store knows no such lease"
            if (grant.credential, grant.session) != (op.credential, op.owner):
                return (
                    f"{op.owner} was granted lease {op.token} of {op.credential} {_when(op)}, "
                    f"but in the store it is {grant.credential}'s, granted to {grant.session}"
                )
            told.add(op.token)
        elif op.kind == "release" and op.answer and op.token not in ended:
            return f"lease {op.token} was given back {_when(op)}, but in the store it did not end"
    for token, grant in granted.items():
        if token not in told:
            open_acquires[grant.session] -= 1
            if open_acquires[grant.session] < 0:
                return f"lease {token} of {grant.credential} was granted to {grant.session}, which was not told of it"
    return None


def _at_those_instants(recording: History, order: Sequence[StoreEvent]) -> str | None:
    """The store's own order is one true to real time, and no lease ended that could not."""
    asked: dict[int, Operation] = {}
    released: dict[int, Operation] = {}
    may_end_from = dict(recording.may_expire)
    for op in recording.operations:
        if op.token is None:
            continue
        if op.kind == "acquire":
            asked[op.token] = op
        elif op.kind == "release" and op.answer:
            released[op.token] = op
        elif op.kind == "release" and op.answer is None:
            may_end_from[op.token] = min(op.invoked_at, may_end_from.get(op.token, NEVER))
    latest, before = -NEVER, ""
    for event in order:
        if event.token not in asked:  # its acquire never returned: nobody knows what became of it
            continue
        what = f"event {event.seq} (lease {event.token} {event.op})"
        cause = asked[event.token] if event.op == "granted" else released.get(event.token)
        since, until = may_end_from.get(event.token, NEVER), NEVER
        if cause is not None:
            since, until = cause.invoked_at, cause.until
        if since == NEVER:
            return f"{what}: nobody gave it back, and it could not expire"
        if since > latest:
            latest, before = since, what
        if latest > until:
            return (
                f"{what} was over by {_instant(until)}, yet follows {before}, which was not before {_instant(latest)}"
            )
    return None


def _when(op: Operation) -> str:
    until = "never returned" if op.returned_at is None else f"to {_instant(op.returned_at)}"
    return f"from {_instant(op.invoked_at)} {until} by {op.process}"


def _instant(at: float) -> str:
    return "the end of time" if at == NEVER else f"{at:.6f}"
