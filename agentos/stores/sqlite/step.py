"""One SQLite transaction, with the operations available inside it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from ...pool.core.quota_codec import Record
from ...pool.protocols import StoreView
from ...pool.store_protocol import CredentialIdentity, EnrolledCredential, QuotaReservation, SlotGranted, SlotRequest
from ..process_fairness import StoreSession
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
    """The state at this moment, and operations to change it."""

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
        self.acts = 0  # how many deferred actions it executes
        self.first_number = changes.number + 1  # of the log entries that this step writes
        self.wakeup_targets: list[WakeupTarget] = []  # to notify after the commit
        self.is_news = changes.number != seen  # the view lacks changes of other processes
        self._seen = seen
        self._execute = execute
        self._ttl = ttl

    def finish(self) -> None:
        """Write the log entries and this process's session."""
        self.changes.served = self.served
        self.changes.write(self._execute)
        if self.me_changed:
            me = self.me
            me.expires_at = self.now + self._ttl  # since the row is written anyway
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
        """Update the view with the state of these, before the rules are applied to it."""
        if self.is_news:
            credentials = [] if credential is None else [read_credential_update(self._execute, credential, self.me.id)]
            quotas = [] if quota is None else [read_quota_update(self._execute, quota)]
            update_view(self._view, credentials, quotas)

    def read_all(self) -> None:
        """Update the view with everything."""
        if self.is_news:
            update_view(self._view, *read_updates_since(self._execute, self._seen, self.me.id))
            for credential in self.changes.credentials:  # changed by this step: not in the log yet
                self.read(credential)
            for quota in self.changes.quotas:
                self.read(quota=quota)

    # -- sessions ---------------------------------------------------------------------------------------------

    def join(self, me: StoreSession) -> None:
        """Begin session *me*."""
        self._execute(
            "insert into sessions(id, expires_at, weight, served, bell, pid) values (?, ?, ?, ?, ?, ?)",
            (me.id, me.expires_at, me.weight, me.served, me.wakeup_port, me.pid),
        )
        self.sessions.append(me)
        self.set_own_session(me)
        self.me_changed = True

    def find_held(self, tokens: Collection[int]) -> list[tuple[int, int]]:
        """Return credential and token of this session's leases that are among *tokens*."""
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
        """Write how long this session's leases may be in use after its process ends."""
        self.me.remote_use_for = seconds
        self._execute("update sessions set out_for = ? where id = ?", (seconds, self.me.id))

    def postpone_expiry(self, session: StoreSession) -> None:
        """Keep an expired session whose commands still use its keys, until the next check."""
        session.expires_at = postpone_expiry(self._execute, session.id, self.now)
        session.waiting_since = None

    def _end_session(self, session: StoreSession) -> set[int]:
        self.is_news = True
        return end_session(self._execute, session.id, self.changes)

    def _record_notified(self, session: StoreSession) -> None:
        self._execute("update sessions set called_at = ? where id = ?", (session.notified_at, session.id))
        self.wakeup_targets.append((session.wakeup_port, session.id))

    # -- leases -----------------------------------------------------------------------------------------------

    def leases_on(self, credential: int) -> list[tuple[str, str, int, float]]:
        """Return the leases on a credential, of all sessions: session, request, token, start."""
        return self._execute(
            "select session, request, token, granted_at from leases where credential = ?", (credential,)
        ).fetchall()

    def lease(self, bid: SlotRequest, reserved: QuotaReservation) -> SlotGranted:
        """Create a lease. Its token is larger than that of every earlier lease."""
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
        """End a lease of this session. Return False if it is not in force."""
        session = self.find_owning_session(token)
        ended = self._execute(
            "delete from leases where credential = ? and token = ? and session = ?", (credential, token, session)
        ).rowcount
        if self.former.pop(token, None) is not None:
            self.is_news = True  # the view counts it as another session's
        if ended:
            self.changes.credentials.add(credential)
            self._notify_next(credential)
        return ended > 0

    def end_unknown(self, tokens: Sequence[int], but: str | None) -> None:
        """End leases of this session that the view does not have, except that of request *but*.

        They come from a commit that reported a failure and took effect nevertheless.
        """
        mine = self._execute(
            "select credential, token, request, quota, guessed from leases where session = ?", (self.me.id,)
        ).fetchall()
        for credential, token, request, quota, guessed in mine:
            if token not in tokens and request != but:
                self.is_news = True  # the view does not have it
                self.end(credential, token)
                if guessed is not None:
                    end_guess(self._execute, quota, json.loads(guessed), self.changes)

    def settle(self, credential: int, token: int) -> bool:
        """Mark the cost of a lease as measured, no longer estimated. Return False if it is not in force."""
        settled = self._execute(
            "update leases set guessed = null where credential = ? and token = ? and session = ?",
            (credential, token, self.me.id),
        ).rowcount
        return settled > 0

    # -- credentials and quotas -------------------------------------------------------------------------------

    def enrol(self, card: CredentialIdentity) -> EnrolledCredential:
        """Register a credential and its quota, if they are new, and return their state."""
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
        """Write whether a credential is alive."""
        self._execute(
            "update credentials set life = ?, evidence = ?, since = ? where number = ?", (life, evidence, since, number)
        )
        self.changes.credentials.add(number)
        self._notify_all()
