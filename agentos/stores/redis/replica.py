"""Replica: this process's copy of the store's records, each with its version, in the store's time.

A record is text. A credential's record has one line of JSON for itself and one for each lease, so that a grant or a
release leaves the other lines as they are. A lease's token is first in its line, where the server inserts it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from ...pool.core.quota_codec import Record, add_version, upgrade_record
from ..process_fairness import StoreSession
from .clock_offset import ClockOffset
from .session_record import SESSION_LIST, decode_session, decode_session_list, encode_json

TOKEN: Final = "\0"  # noqa: S105 - where the server puts the token of a lease that begins
NEW: Final = -1  # placeholder for the token until the server has granted it
_REPORTED_KINDS: Final = frozenset("cq")  # records that the view receives


class UnreadableRecord(Exception):
    """A record is malformed."""


@contextmanager
def require_readable(what: str) -> Iterator[None]:
    """Raise UnreadableRecord about *what* for errors of parsing."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UnreadableRecord(f"{what} is not readable ({type(error).__name__})") from None


class HeldLease(NamedTuple):
    """A lease in force. ``line`` is its text in the record."""

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
        """Build a lease that is not written yet."""
        line = (  # same text as ``encode_json`` in half the time: every grant needs it
            f"[{TOKEN if token == NEW else token},{encode_json(session)},{encode_json(request)},"
            f"{encode_json(requester)},"
            f"{granted_at!r},{quota},{'null' if guessed is None else encode_json(guessed)}]"
        )
        return cls(line, token, session, request, requester, granted_at, quota, guessed)

    def given(self, token: int) -> HeldLease:
        """Return the lease with the token that the server granted."""
        return HeldLease(self.line.replace(TOKEN, str(token)), token, *self[2:])

    def moved_to(self, session: str) -> HeldLease:
        """Return the lease as another session's."""
        return HeldLease.written(self.token, session, *self[3:])

    def settled(self) -> HeldLease:
        """Return the lease with its cost measured, no longer estimated."""
        return HeldLease.written(*self[1:7], None)


class CredentialRecord(NamedTuple):
    """A credential and its leases. ``head`` is the text without the leases."""

    head: str
    leases: tuple[HeldLease, ...]
    fingerprint: str
    name: str
    life: str
    evidence: str
    since: float

    @classmethod
    def written(cls, *fields: Any, leases: tuple[HeldLease, ...] = ()) -> CredentialRecord:
        """Build a record that is not written yet; *fields* are those from ``fingerprint`` on."""
        return cls(encode_json(fields), leases, *fields)

    def text(self) -> str:
        return "\n".join([self.head, *[lease.line for lease in self.leases]])

    def without(self, gone: Sequence[HeldLease]) -> CredentialRecord:
        return self.with_leases(tuple(lease for lease in self.leases if lease not in gone))

    def given(self, token: int) -> CredentialRecord:
        """Return the record with the token that the server granted for its new lease."""
        return self.with_leases(tuple(held.given(token) if held.token == NEW else held for held in self.leases))

    def with_leases(self, leases: tuple[HeldLease, ...]) -> CredentialRecord:
        return CredentialRecord(self.head, leases, *self[2:])


class QuotaRecord(NamedTuple):
    """A quota and its state, as text."""

    name: str
    known: str

    def text(self) -> str:
        return f"{self.name}\n{self.known}"

    def with_record(self, record: Record) -> QuotaRecord:
        """Return the quota with that state, in the store's time."""
        return self._replace(known=encode_json(add_version(record)))

    def record(self) -> Record:
        """Return the parsed state, in the store's time."""
        with require_readable("the record of a quota"):
            return upgrade_record(json.loads(self.known))


class Replica:
    """The records. ``unreported`` are those that changed since the view received them."""

    def __init__(self) -> None:
        self.seen = 0  # the newest change that is included
        self.versions: dict[str, int] = {}
        self.unreported: set[str] = set()
        self._texts: dict[str, str] = {}
        self._read: dict[str, CredentialRecord | QuotaRecord] = {}
        self._numbers: dict[str, int] = {}  # by fingerprint of a credential, by encoded name of a quota
        self._highest = {"c": 0, "q": 0}
        self._not_numbered: list[str] = []  # records not yet in those two
        self._session_list: tuple[list[str], float] | None = None  # parsed SESSION_LIST
        self._sessions: dict[str, tuple[StoreSession, float]] = {}  # parsed session records
        self._queue: tuple[list[StoreSession], float] | None = None  # all of these combined

    def apply_updates(self, news: Sequence[str], seen: int) -> None:
        """Apply what others changed: name, version and text of each record."""
        for at in range(0, len(news) - 2, 3):
            name = news[at]
            self._keep(name, int(news[at + 1]), news[at + 2])
            if name[0] in _REPORTED_KINDS:
                self.unreported.add(name)
        self.seen = seen

    def apply_own_writes(
        self, texts: dict[str, str], read: dict[str, CredentialRecord | QuotaRecord], version: int, token: int | None
    ) -> None:
        """Apply what this process wrote, with the token that the server granted."""
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
        """Drop everything, so that the next reply contains all records."""
        self.seen = 0
        self.invalidate_queue()
        self._session_list = None
        for known in (self.versions, self.unreported, self._texts, self._read, self._numbers, self._not_numbered):
            known.clear()
        self._highest = {"c": 0, "q": 0}

    def mark_all_unreported(self) -> None:
        """Let the next update of the view contain everything."""
        self.unreported.update(name for name in self.versions if name[0] in _REPORTED_KINDS)

    def _keep(self, name: str, version: int, text: str) -> None:
        if name[0] in _REPORTED_KINDS:
            if name not in self.versions:
                self._not_numbered.append(name)
            self._read.pop(name, None)
        else:
            self._queue = None
            self._sessions.pop(name, None)
            if name == SESSION_LIST:
                self._session_list = None
        self.versions[name] = version
        self._texts[name] = text

    def numbers(self, kind: str) -> Iterator[int]:
        """Return the numbers of all credentials ("c") or quotas ("q")."""
        return (int(name[1:]) for name in self.versions if name[0] == kind)

    def find_credential(self, fingerprint: str) -> int | None:
        """Return the number of the credential with that fingerprint."""
        self._number()
        return self._numbers.get(fingerprint)

    def find_quota(self, name: str) -> int | None:
        """Return the number of the quota with that encoded name."""
        self._number()
        return self._numbers.get(name)

    def next_number(self, kind: str) -> int:
        """Return the number for a new credential ("c") or quota ("q")."""
        self._number()
        return self._highest[kind] + 1

    def _number(self) -> None:
        for name in self._not_numbered:
            kind, number = name[0], int(name[1:])
            # A quota's name is quoted, so it differs from every fingerprint.
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

    def read_queue(self, clock_offset: ClockOffset, host: str) -> tuple[list[StoreSession], float]:
        """Return the sessions, in this process's time, and the fair queue's virtual time.

        A step changes the sessions in place; if it fails, ``invalidate_sessions`` drops them.
        """
        if self._queue is None:
            with require_readable("the record of who waits"):
                names, served = self._members()
                known = [self._session(name, clock_offset, host) for name in names if name in self._texts]
            self._queue = [session for session, _ in known], max([served, *[at for _, at in known]])
        return self._queue

    def _members(self) -> tuple[list[str], float]:
        """Return the record names of the present sessions; drop those of others, as the server does."""
        if self._session_list is None:
            text = self._texts.get(SESSION_LIST)
            self._session_list = ([], 0.0) if text is None else decode_session_list(text)
            present = set(self._session_list[0])
            for name in [name for name in self.versions if name[0] == "s" and name not in present]:
                del self.versions[name], self._texts[name]
                self._sessions.pop(name, None)
        return self._session_list

    def _session(self, name: str, clock_offset: ClockOffset, host: str) -> tuple[StoreSession, float]:
        found = self._sessions.get(name)
        if found is None:
            found = self._sessions[name] = decode_session(self._texts[name], clock_offset, host)
        return found

    def invalidate_sessions(self, names: Iterable[str]) -> None:
        """Parse these again when needed: a failed step changed them."""
        self._queue = None
        for name in names:
            self._sessions.pop(name, None)

    def invalidate_queue(self) -> None:
        """Parse all sessions again when needed: the clock offset has changed."""
        self._queue = None
        self._sessions.clear()
