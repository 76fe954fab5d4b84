"""What is in the store, as this process last heard it: every record with its version, in the store's time.

A record is text. A credential's is one line of JSON for itself and one for each of its leases, so that a grant or an
end leaves the rest as it is; the token of a lease is the first thing in its line, where the server puts it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from ...pool.core.fair_queue import Session
from ...pool.core.quota_codec import Record
from .clock_offset import Border
from .session_record import LINE, dump, read_line, read_session

TOKEN: Final = "\0"  # noqa: S105 - where the server puts the token of a lease that begins
NEW: Final = -1  # in the place of that token here, until it is known
_TOLD: Final = frozenset("cq")  # the kinds of records that the view is told of


class Unreadable(Exception):
    """A record is not what was written."""


@contextmanager
def readable(what: str) -> Iterator[None]:
    """What cannot be made sense of in here makes *what* unreadable."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise Unreadable(f"{what} is not readable ({type(error).__name__})") from None


class Held(NamedTuple):
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
    ) -> Held:
        """One that has yet to be written."""
        line = (  # what ``dump`` would make of it all, in half the time: every grant pays for it
            f"[{TOKEN if token == NEW else token},{dump(session)},{dump(request)},{dump(requester)},"
            f"{granted_at!r},{quota},{'null' if guessed is None else dump(guessed)}]"
        )
        return cls(line, token, session, request, requester, granted_at, quota, guessed)

    def given(self, token: int) -> Held:
        """The same lease, now that its token is known."""
        return Held(self.line.replace(TOKEN, str(token)), token, *self[2:])

    def moved_to(self, session: str) -> Held:
        """The same lease, of another session."""
        return Held.written(self.token, session, *self[3:])

    def settled(self) -> Held:
        """The same lease, its cost being no guess any more."""
        return Held.written(*self[1:7], None)


class CredentialRecord(NamedTuple):
    """A credential, and who has leased it. ``head`` is all but the leases, as it is written."""

    head: str
    leases: tuple[Held, ...]
    fingerprint: str
    name: str
    life: str
    evidence: str
    since: float

    @classmethod
    def written(cls, *fields: Any, leases: tuple[Held, ...] = ()) -> CredentialRecord:
        """One that has yet to be written; *fields* are those from ``fingerprint`` on."""
        return cls(dump(fields), leases, *fields)

    def text(self) -> str:
        return "\n".join([self.head, *[lease.line for lease in self.leases]])

    def without(self, gone: Sequence[Held]) -> CredentialRecord:
        return self.with_leases(tuple(lease for lease in self.leases if lease not in gone))

    def given(self, token: int) -> CredentialRecord:
        """The same, now that the token of its new lease is known."""
        return self.with_leases(tuple(held.given(token) if held.token == NEW else held for held in self.leases))

    def with_leases(self, leases: tuple[Held, ...]) -> CredentialRecord:
        return CredentialRecord(self.head, leases, *self[2:])


class QuotaRecord(NamedTuple):
    """A quota, and what is known of it, as it is written."""

    name: str
    known: str

    def text(self) -> str:
        return f"{self.name}\n{self.known}"

    def record(self) -> Record:
        """What is known of it, in the store's time."""
        with readable("the record of a quota"):
            found: Record = json.loads(self.known)
        return found


class Replica:
    """The records. ``untold`` are those that the view does not have as they are."""

    def __init__(self) -> None:
        self.seen = 0  # the newest change that is in it
        self.versions: dict[str, int] = {}
        self.untold: set[str] = set()
        self._texts: dict[str, str] = {}
        self._read: dict[str, CredentialRecord | QuotaRecord] = {}
        self._numbers: dict[str, int] = {}  # of credentials by fingerprint, and of quotas by name, as they are written
        self._highest = {"c": 0, "q": 0}
        self._not_numbered: list[str] = []  # records that are not in those two yet
        self._there: tuple[list[str], float] | None = None  # the line's record
        self._sessions: dict[str, tuple[Session, float]] = {}  # their records
        self._line: tuple[list[Session], float] | None = None  # what all of these say

    def absorb(self, news: Sequence[str], seen: int) -> None:
        """Take over what others did: name, version and text of each record that is another by now."""
        for at in range(0, len(news) - 2, 3):
            name = news[at]
            self._keep(name, int(news[at + 1]), news[at + 2])
            if name[0] in _TOLD:
                self.untold.add(name)
        self.seen = seen

    def wrote(
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
        self.forget_line()
        self._there = None
        for known in (self.versions, self.untold, self._texts, self._read, self._numbers, self._not_numbered):
            known.clear()
        self._highest = {"c": 0, "q": 0}

    def tell_all(self) -> None:
        """The view is to be told of everything."""
        self.untold.update(name for name in self.versions if name[0] in _TOLD)

    def _keep(self, name: str, version: int, text: str) -> None:
        if name[0] in _TOLD:
            if name not in self.versions:
                self._not_numbered.append(name)
            self._read.pop(name, None)
        else:
            self._line = None
            self._sessions.pop(name, None)
            if name == LINE:
                self._there = None
        self.versions[name] = version
        self._texts[name] = text

    def numbers(self, kind: str) -> Iterator[int]:
        """The numbers of all credentials ("c") or quotas ("q")."""
        return (int(name[1:]) for name in self.versions if name[0] == kind)

    def credential_of(self, fingerprint: str) -> int | None:
        """The number of the credential that has it."""
        self._number()
        return self._numbers.get(fingerprint)

    def quota_of(self, name: str) -> int | None:
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
            with readable("the record of a credential"):
                head, *leases = self._texts[name].split("\n")
                held = tuple(Held(lease, *json.loads(lease)) for lease in leases)
                found = self._read[name] = CredentialRecord(head, held, *json.loads(head))
        return found

    def quota(self, number: int) -> QuotaRecord:
        name = f"q{number}"
        found = self._read.get(name)
        if not isinstance(found, QuotaRecord):
            with readable("the record of a quota"):
                found = self._read[name] = QuotaRecord(*self._texts[name].split("\n"))
        return found

    def line(self, border: Border, host: str) -> tuple[list[Session], float]:
        """The sessions, in this process's time, and where those who wait are.

        A step changes the sessions in place; whatever becomes of it, they are to be read anew then.
        """
        if self._line is None:
            with readable("the record of who waits"):
                names, served = self._members()
                known = [self._session(name, border, host) for name in names if name in self._texts]
            self._line = [session for session, _ in known], max([served, *[at for _, at in known]])
        return self._line

    def _members(self) -> tuple[list[str], float]:
        """The records of those who are there; those of others are dropped, as the server has."""
        if self._there is None:
            text = self._texts.get(LINE)
            self._there = ([], 0.0) if text is None else read_line(text)
            present = set(self._there[0])
            for name in [name for name in self.versions if name[0] == "s" and name not in present]:
                del self.versions[name], self._texts[name]
                self._sessions.pop(name, None)
        return self._there

    def _session(self, name: str, border: Border, host: str) -> tuple[Session, float]:
        found = self._sessions.get(name)
        if found is None:
            found = self._sessions[name] = read_session(self._texts[name], border, host)
        return found

    def forget_sessions(self, names: Iterable[str]) -> None:
        """Read these anew when they are needed: they were changed in vain."""
        self._line = None
        for name in names:
            self._sessions.pop(name, None)

    def forget_line(self) -> None:
        """Read all of it anew when it is needed: the clocks have moved."""
        self._line = None
        self._sessions.clear()
