"""One transaction of the SQLite store, as the acts see it that are done in it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from ...pool.core.fair_queue import StoreSession
from ...pool.core.quota_codec import Record
from ...pool.protocols import StoreView
from ...pool.store_protocol import CredentialIdentity, EnrolledCredential, QuotaReservation, SlotGranted, SlotRequest
from ..session import SessionStep
from .rows import (
    Changes,
    Execute,
    end_guess,
    end_session,
    postpone_expiry,
    read_credential_update,
    read_quota_update,
    read_updates_since,
    update_view,
    write_record,
)
from .udp_wakeup import WakeupTarget


class SqliteStep(SessionStep):
    """What is true at this moment, and ways to change it."""

    def __init__(
        self,
        execute: Execute,
        now: float,
        ttl: float,
        changes: Changes,
        sessions: list[StoreSession],
        view: StoreView,
        seen: int,
    ) -> None:
        super().__init__(now, sessions, changes.served, view)
        self.changes = changes
        self.acts = 0  # how many of those that were put off are done in it
        self.first_number = changes.number + 1  # of the entries this step makes in the log
        self.wakeup_targets: list[WakeupTarget] = []  # bells to ring when it is committed
        self.is_news = changes.number != seen  # others have done something that the view does not have
        self._seen = seen
        self._execute = execute
        self._ttl = ttl

    def finish(self) -> None:
        """Write down what the step itself has to remember."""
        self.changes.served = self.served
        self.changes.write(self._execute)
        if self.me_changed:
            me = self.me
            me.expires_at = self.now + self._ttl  # since it is written anyway
            self._execute(
                "update sessions set expires_at = ?, served = ?, waiting_since = ?, wanted = ?, called_at = ?, "
                "idle_until = ?, claim = ? where id = ?",
                (
                    me.expires_at,
                    me.served,
                    me.waiting_since,
                    me.wanted,
                    me.notified_at,
                    me.idle_until,
                    me.claim,
                    me.id,
                ),
            )

    def read(self, credential: int | None = None, quota: int | None = None) -> None:
        """Let the view see what is true of these, before the rules are applied to it."""
        if self.is_news:
            credentials = [] if credential is None else [read_credential_update(self._execute, credential, self.me.id)]
            quotas = [] if quota is None else [read_quota_update(self._execute, quota)]
            update_view(self._view, credentials, quotas)

    def read_all(self) -> None:
        """Let the view see everything."""
        if self.is_news:
            update_view(self._view, *read_updates_since(self._execute, self._seen, self.me.id))
            for credential in self.changes.credentials:  # by this very step: not in the log yet
                self.read(credential)
            for quota in self.changes.quotas:
                self.read(quota=quota)

    # -- sessions ---------------------------------------------------------------------------------------------

    def join(self, me: StoreSession) -> None:
        """Begin a session."""
        self._execute(
            "insert into sessions(id, expires_at, weight, served, bell, pid) values (?, ?, ?, ?, ?, ?)",
            (me.id, me.expires_at, me.weight, me.served, me.wakeup_port, me.pid),
        )
        self.sessions.append(me)
        self.set_own_session(me)
        self.me_changed = True

    def find_held(self, tokens: Collection[int]) -> list[tuple[int, int]]:
        """The leases of this session with one of *tokens*: credential and token."""
        mine = self._execute("select credential, token from leases where session = ?", (self.me.id,)).fetchall()
        return [(credential, token) for credential, token in mine if token in tokens]

    def _take_over(self, before: StoreSession, abandoned: Collection[int]) -> None:
        """Move the leases of session *before* to this one, except the *abandoned* tokens."""
        execute = self._execute
        for credential, token in execute(
            "select credential, token from leases where session = ?", (before.id,)
        ).fetchall():
            if token in abandoned:
                self.changes.credentials.add(credential)
            else:
                execute(
                    "update leases set session = ? where credential = ? and token = ?", (self.me.id, credential, token)
                )
        execute(
            "update sessions set waiting_since = null, called_at = null, idle_until = null, claim = null where id = ?",
            (before.id,),
        )
        self.is_news = True

    def set_remote_use(self, seconds: float | None) -> None:
        """Leases of this session may be in use for so long after its process is gone."""
        self.me.remote_use_for = seconds
        self._execute("update sessions set out_for = ? where id = ?", (seconds, self.me.id))

    def postpone_expiry(self, session: StoreSession) -> None:
        """Commands of a session that has run out still use its keys: it is looked at again in a moment."""
        session.expires_at = postpone_expiry(self._execute, session.id, self.now)
        session.waiting_since = None

    def _end_session(self, session: StoreSession) -> set[int]:
        self.is_news = True
        return end_session(self._execute, session.id, self.changes)

    def _record_notified(self, session: StoreSession) -> None:
        self._execute("update sessions set called_at = ? where id = ?", (session.notified_at, session.id))
        self.wakeup_targets.append((session.wakeup_port, session.id))

    # -- leases -----------------------------------------------------------------------------------------------

    def leases_on(self, credential: int) -> list[tuple[str, int, float]]:
        """The leases of a credential that are in force, whoever has them: request, token, and since when."""
        return self._execute(
            "select request, token, granted_at from leases where credential = ?", (credential,)
        ).fetchall()

    def lease(self, bid: SlotRequest, reserved: QuotaReservation) -> SlotGranted:
        """Begin a lease. Its token is larger than that of every lease before it."""
        changes = self.changes
        changes.token += 1
        changes.credentials.add(bid.credential)
        guessed = json.dumps(reserved.guessed) if reserved.guessed else None
        self._execute(
            "insert into leases(credential, token, session, request, requester, granted_at, quota, guessed) "
            "values (?, ?, ?, ?, ?, ?, ?, ?)",
            (bid.credential, changes.token, self.me.id, bid.request, bid.requester, self.now, bid.quota, guessed),
        )
        if reserved.record is not None:
            self._write_record(bid.quota, reserved.record)
        return SlotGranted(changes.token, self.now)

    def end(self, credential: int, token: int) -> bool:
        """End a lease of this session. False: it is not in force."""
        session = self.find_owning_session(token)
        ended = self._execute(
            "delete from leases where credential = ? and token = ? and session = ?", (credential, token, session)
        ).rowcount
        if self.former.pop(token, None) is not None:
            self.is_news = True  # the view counts it as another's
        if ended:
            self.changes.credentials.add(credential)
            self._notify_next(credential)
        return ended > 0

    def end_unknown(self, tokens: Sequence[int], but: str | None) -> None:
        """End leases of this session that it knows nothing of, except that of request *but*.

        After a commit that failed and was done all the same.
        """
        mine = self._execute(
            "select credential, token, request, quota, guessed from leases where session = ?", (self.me.id,)
        ).fetchall()
        for credential, token, request, quota, guessed in mine:
            if token not in tokens and request != but:
                self.is_news = True  # the view does not know of it
                self.end(credential, token)
                if guessed is not None:
                    end_guess(self._execute, quota, json.loads(guessed), self.changes)

    def settle(self, credential: int, token: int) -> bool:
        """The cost of a lease is no guess any more. False: it is not in force."""
        settled = self._execute(
            "update leases set guessed = null where credential = ? and token = ? and session = ?",
            (credential, token, self.me.id),
        ).rowcount
        return settled > 0

    # -- what is known ----------------------------------------------------------------------------------------

    def enrol(self, card: CredentialIdentity) -> EnrolledCredential:
        """Make a credential and its quota known."""
        execute = self._execute
        row = execute("select number, name from credentials where fingerprint = ?", (card.fingerprint,)).fetchone()
        if row is None:
            row = execute(
                "insert into credentials(fingerprint, name, life, evidence, since) "
                "values (?, ?, 'alive', '', ?) returning number, name",
                (card.fingerprint, card.name, self.now),
            ).fetchall()[0]
        if row[1] != card.name:
            execute("update credentials set name = ? where number = ?", (card.name, row[0]))
        quota = execute("select number from quotas where name = ?", (card.quota,)).fetchone()
        if quota is None:
            quota = execute(
                "insert into quotas(name, record) values (?, '{}') returning number", (card.quota,)
            ).fetchall()[0]
        return EnrolledCredential(
            read_credential_update(execute, row[0], self.me.id), read_quota_update(execute, quota[0])
        )

    def _write_record(self, number: int, record: Record) -> None:
        write_record(self._execute, number, record)
        self.changes.quotas.add(number)

    def write_life(self, number: int, life: str, evidence: str, since: float) -> None:
        """Keep whether a credential lives."""
        self._execute(
            "update credentials set life = ?, evidence = ?, since = ? where number = ?", (life, evidence, since, number)
        )
        self.changes.credentials.add(number)
        self._notify_all()
