"""What is in the store, as this process last heard it: every record with its version, in the store's time.

A record is text. A credential's is one line of JSON for itself and one for each of its leases, so that a grant or an
end leaves the rest as it is; the token of a lease is the first thing in its line, where the server puts it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from ...pool.core.fair_queue import StoreSession
from ...pool.core.quota_codec import Record
from .clock_offset import ClockOffset
from .session_record import SESSION_LIST, decode_session, decode_session_list, encode_json

TOKEN: Final = "\0"  # noqa: S105 - where the server puts the token of a lease that begins
NEW: Final = -1  # in the place of that token here, until it is known
_REPORTED_KINDS: Final = frozenset("cq")  # the kinds of records that the view is told of


class UnreadableRecord(Exception):
    """A record is not what was written."""


@contextmanager
def require_readable(what: str) -> Iterator[None]:
    """What cannot be made sense of in here makes *what* unreadable."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UnreadableRecord(f"{what} is not readable ({type(error).__name__})") from None


class HeldLease(NamedTuple):
    """A lease in force. ``line`` is all of it, as it is written."""

    line: str
    token: int
    session: str
    request: str
    requester: str | None
    granted_at: float
    quota: int
    guessed: list[str] | None

    @classmethod
    def written(
        cls,
        token: int,
        session: str,
        request: str,
        requester: str | None,
        granted_at: float,
        quota: int,
        guessed: list[str] | None,
    ) -> HeldLease:
        """One that has yet to be written."""
        line = (  # what ``encode_json`` would make of it all, in half the time: every grant pays for it
            f"[{TOKEN if token == NEW else token},{encode_json(session)},{encode_json(request)},"
            f"{encode_json(requester)},"
            f"{granted_at!r},{quota},{'null' if guessed is None else encode_json(guessed)}]"
        )
        return cls(line, token, session, request, requester, granted_at, quota, guessed)

    def given(self, token: int) -> HeldLease:
        """The same lease, now that its token is known."""
        return HeldLease(self.line.replace(TOKEN, str(token)), token, *self[2:])

    def moved_to(self, session: str) -> HeldLease:
        """The same lease, of another session."""
        return HeldLease.written(self.token, session, *self[3:])

    def settled(self) -> HeldLease:
        """The same lease, its cost being no guess any more."""
        return HeldLease.written(*self[1:7], None)


class CredentialRecord(NamedTuple):
    """A credential, and who has leased it. ``head`` is all but the leases, as it is written."""

    head: str
    leases: tuple[HeldLease, ...]
    fingerprint: str
    name: str
    life: str
    evidence: str
    since: float

    @classmethod
    def written(cls, *fields: Any, leases: tuple[HeldLease, ...] = ()) -> CredentialRecord:
        """One that has yet to be written; *fields* are those from ``fingerprint`` on."""
        return cls(encode_json(fields), leases, *fields)

    def text(self) -> str:
        return "\n".join([self.head, *[lease.line for lease in self.leases]])

    def without(self, gone: Sequence[HeldLease]) -> CredentialRecord:
        return self.with_leases(tuple(lease for lease in self.leases if lease not in gone))

    def given(self, token: int) -> CredentialRecord:
        """The same, now that the token of its new lease is known."""
        return self.with_leases(tuple(held.given(token) if held.token == NEW else held for held in self.leases))

    def with_leases(self, leases: tuple[HeldLease, ...]) -> CredentialRecord:
        return CredentialRecord(self.head, leases, *self[2:])


class QuotaRecord(NamedTuple):
    """A quota, and what is known of it, as it is written."""

    name: str
    known: str

    def text(self) -> str:
        return f"{self.name}\n{self.known}"

    def record(self) -> Record:
        """What is known of it, in the store's time."""
        with require_readable("the record of a quota"):
            found: Record = json.loads(self.known)
        return found


class Replica:
    """The records. ``unreported`` are those that the view does not have as they are."""

    def __init__(self) -> None:
        self.seen = 0  # the newest change that is in it
        self.versions: dict[str, int] = {}
        self.unreported: set[str] = set()
        self._texts: dict[str, str] = {}
        self._read: dict[str, CredentialRecord | QuotaRecord] = {}
        self._numbers: dict[str, int] = {}  # of credentials by fingerprint, and of quotas by name, as they are written
        self._highest = {"c": 0, "q": 0}
        self._not_numbered: list[str] = []  # records that are not in those two yet
        self._there: tuple[list[str], float] | None = None  # the line's record
        self._sessions: dict[str, tuple[StoreSession, float]] = {}  # their records
        self._line: tuple[list[StoreSession], float] | None = None  # what all of these say

    def apply_updates(self, news: Sequence[str], seen: int) -> None:
        """Take over what others did: name, version and text of each record that is another by now."""
        for at in range(0, len(news) - 2, 3):
            name = news[at]
            self._keep(name, int(news[at + 1]), news[at + 2])
            if name[0] in _REPORTED_KINDS:
                self.unreported.add(name)
        self.seen = seen

    def apply_own_writes(
        self, texts: dict[str, str], read: dict[str, CredentialRecord | QuotaRecord], version: int, token: int | None
    ) -> None:
        """Take over what we did, and which token the server gave to the lease in it."""
        for name, text in texts.items():
            record = read.get(name)
            if token is not None and TOKEN in text:
                text = text.replace(TOKEN, str(token))
                if isinstance(record, CredentialRecord):
                    record = record.given(token)
            self._keep(name, version, text)
            if record is not None:
                self._read[name] = record

    def forget(self) -> None:
        """Know nothing: all of it is news then."""
        self.seen = 0
        self.invalidate_queue()
        self._there = None
        for known in (self.versions, self.unreported, self._texts, self._read, self._numbers, self._not_numbered):
            known.clear()
        self._highest = {"c": 0, "q": 0}

    def mark_all_unreported(self) -> None:
        """The view is to be told of everything."""
        self.unreported.update(name for name in self.versions if name[0] in _REPORTED_KINDS)

    def _keep(self, name: str, version: int, text: str) -> None:
        if name[0] in _REPORTED_KINDS:
            if name not in self.versions:
                self._not_numbered.append(name)
            self._read.pop(name, None)
        else:
            self._line = None
            self._sessions.pop(name, None)
            if name == SESSION_LIST:
                self._there = None
        self.versions[name] = version
        self._texts[name] = text

    def numbers(self, kind: str) -> Iterator[int]:
        """The numbers of all credentials ("c") or quotas ("q")."""
        return (int(name[1:]) for name in self.versions if name[0] == kind)

    def find_credential(self, fingerprint: str) -> int | None:
        """The number of the credential that has it."""
        self._number()
        return self._numbers.get(fingerprint)

    def find_quota(self, name: str) -> int | None:
        """The number of the quota of that name, as it is written."""
        self._number()
        return self._numbers.get(name)

    def next_number(self, kind: str) -> int:
        """For the next credential ("c") or quota ("q")."""
        self._number()
        return self._highest[kind] + 1

    def _number(self) -> None:
        for name in self._not_numbered:
            kind, number = name[0], int(name[1:])
            # What is written of a quota is in quotes: no fingerprint is.
            known_by = self.credential(number).fingerprint if kind == "c" else self.quota(number).name
            self._numbers[known_by] = number
            self._highest[kind] = max(self._highest[kind], number)
        self._not_numbered.clear()

    def credential(self, number: int) -> CredentialRecord:
        name = f"c{number}"
        found = self._read.get(name)
        if not isinstance(found, CredentialRecord):
            with require_readable("the record of a credential"):
                head, *leases = self._texts[name].split("\n")
                held = tuple(HeldLease(lease, *json.loads(lease)) for lease in leases)
                found = self._read[name] = CredentialRecord(head, held, *json.loads(head))
        return found

    def quota(self, number: int) -> QuotaRecord:
        name = f"q{number}"
        found = self._read.get(name)
        if not isinstance(found, QuotaRecord):
            with require_readable("the record of a quota"):
                found = self._read[name] = QuotaRecord(*self._texts[name].split("\n"))
        return found

    def read_queue(self, border: ClockOffset, host: str) -> tuple[list[StoreSession], float]:
        """The sessions, in this process's time, and where those who wait are.

        A step changes the sessions in place; whatever becomes of it, they are to be read anew then.
        """
        if self._line is None:
            with require_readable("the record of who waits"):
                names, served = self._members()
                known = [self._session(name, border, host) for name in names if name in self._texts]
            self._line = [session for session, _ in known], max([served, *[at for _, at in known]])
        return self._line

    def _members(self) -> tuple[list[str], float]:
        """The records of those who are there; those of others are dropped, as the server has."""
        if self._there is None:
            text = self._texts.get(SESSION_LIST)
            self._there = ([], 0.0) if text is None else decode_session_list(text)
            present = set(self._there[0])
            for name in [name for name in self.versions if name[0] == "s" and name not in present]:
                del self.versions[name], self._texts[name]
                self._sessions.pop(name, None)
        return self._there

    def _session(self, name: str, border: ClockOffset, host: str) -> tuple[StoreSession, float]:
        found = self._sessions.get(name)
        if found is None:
            found = self._sessions[name] = decode_session(self._texts[name], border, host)
        return found

    def invalidate_sessions(self, names: Iterable[str]) -> None:
        """Read these anew when they are needed: they were changed in vain."""
        self._line = None
        for name in names:
            self._sessions.pop(name, None)

    def invalidate_queue(self) -> None:
        """Read all of it anew when it is needed: the clocks have moved."""
        self._line = None
        self._sessions.clear()
