"""RedisStep: one step on the replica, with what it read and what to write if that is unchanged on the server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ...pool.core.quota_codec import Record, shift_record, without_in_flight
from ...pool.protocols import StoreView
from ...pool.store_protocol import (
    CredentialIdentity,
    CredentialUpdate,
    EnrolledCredential,
    QuotaReservation,
    QuotaUpdate,
    SlotGranted,
    SlotRequest,
    read_stated_slots,
)
from ..process_fairness import StoreSession
from ..session import SessionStep
from ..step_queueing import describe_process
from .clock_offset import ClockOffset
from .replica import NEW, CredentialRecord, HeldLease, QuotaRecord, Replica, require_readable
from .session_record import (
    FRONT_CHANGED,
    SESSION_LIST,
    WAITING_CHANGED,
    encode_json,
    encode_session,
    encode_session_list,
    record_name,
)


class RedisStep(SessionStep):
    """The state as far as known, and operations to change it. Nothing changes before the server has accepted it."""

    def __init__(self, replica: Replica, clock_offset: ClockOffset, now: float, view: StoreView, *, host: str) -> None:
        sessions, served = replica.read_queue(clock_offset, host)
        super().__init__(now, list(sessions), served, view)
        self.acts = 0  # how many deferred actions it executes
        self.joins = False
        self.is_continued = False  # the session that begins replaces one of ours
        self.grants = False
        self.ended: list[str] = []  # sessions
        self.wakeup_sessions: list[str] = []  # to notify when it is done
        self.records: dict[str, CredentialRecord | QuotaRecord] = {}  # to be written
        self._read: set[str] = {SESSION_LIST}
        self._notified: list[StoreSession] = []
        self._sessions_changed = False  # the set of sessions has changed
        self._replica = replica
        self._clock_offset = clock_offset
        self._host = host

    # -- the request to the server ----------------------------------------------------------------------------

    def read_versions(self) -> str:
        """Return the records that the step depends on, each with the version that it must have."""
        names = self._read.union(record_name(each.id) for each in (*self.session_dependencies, *self._to_write()))
        if self.depends_on_waiting:
            names.add(WAITING_CHANGED)
        elif self.depends_on_front:  # written only together with the former
            names.add(FRONT_CHANGED)
        versions = self._replica.versions
        return " ".join([f"{name} {versions.get(name, 0)}" for name in names])

    def writes(self) -> dict[str, str]:
        """Return the records to write."""
        texts = {name: record.text() for name, record in self.records.items()}
        for session in self._to_write():
            texts[record_name(session.id)] = encode_session(session, self.served, self._clock_offset, self._host)
        if self.me_changed and self.me.waiting_since is not None:
            texts[WAITING_CHANGED] = ""
            place = self.me.order()
            if any(other.waiting_since is not None and place < other.order() for other in self.others):
                texts[FRONT_CHANGED] = ""
        if self._sessions_changed:
            texts[SESSION_LIST] = encode_session_list(self.sessions, self.served)
        return texts

    def _to_write(self) -> list[StoreSession]:
        return [*self._notified, self.me] if self.me_changed else self._notified

    def affected_records(self) -> Iterable[str]:
        """Return the records of which the view may have received changes that did not take effect."""
        return [
            name for name in self._read if name[0] in "cq" and name in self._replica.versions
        ]  # else it does not exist

    def changed_sessions(self) -> Iterable[str]:
        """Return the records of the sessions that the step changed."""
        return [record_name(session.id) for session in (*self._notified, self.me)]

    # -- reading ----------------------------------------------------------------------------------------------

    def _credential(self, number: int) -> CredentialRecord:
        name = f"c{number}"
        self._read.add(name)
        written = self.records.get(name)
        return written if isinstance(written, CredentialRecord) else self._replica.credential(number)

    def _quota(self, number: int) -> QuotaRecord:
        name = f"q{number}"
        self._read.add(name)
        written = self.records.get(name)
        return written if isinstance(written, QuotaRecord) else self._replica.quota(number)

    def read(self, credential: int | None = None, quota: int | None = None) -> None:
        """Update the view with the state of these, before the rules are applied to it."""
        unreported = self._replica.unreported
        credentials, quotas = [], []
        if credential is not None:
            name = f"c{credential}"
            self._read.add(name)
            if name in unreported:
                unreported.discard(name)
                credentials.append(self._credential_news(credential))
        if quota is not None:
            name = f"q{quota}"
            self._read.add(name)
            if name in unreported:
                unreported.discard(name)
                quotas.append(self._quota_news(quota))
        if credentials or quotas:
            self._apply_to_view(credentials, quotas)

    def read_all(self) -> None:
        """Update the view with everything. The step then depends on every record."""
        for number in list(self._replica.numbers("c")):
            self.read(number)
        for number in list(self._replica.numbers("q")):
            self.read(quota=number)

    def update_view(self) -> bool:
        """Update the view with what it does not have yet. Return False if there is nothing."""
        names, unreported = list(self._replica.unreported), self._replica.unreported
        if names:
            credentials = [self._credential_news(int(name[1:])) for name in names if name[0] == "c"]
            quotas = [self._quota_news(int(name[1:])) for name in names if name[0] == "q"]
            unreported.clear()
            self._apply_to_view(credentials, quotas)
        return bool(names)

    def _apply_to_view(self, credentials: Sequence[CredentialUpdate], quotas: Sequence[QuotaUpdate]) -> None:
        with require_readable("the record of a credential or a quota"):
            self._view.apply_updates(credentials, quotas)

    def _credential_news(self, number: int) -> CredentialUpdate:
        record = self._credential(number)
        since = self._clock_offset.to_local(record.since)
        holders, slots = self._holders(record)
        return CredentialUpdate(number, record.life, record.evidence, since, holders, slots)

    def _quota_news(self, number: int) -> QuotaUpdate:
        return QuotaUpdate(number, shift_record(self._quota(number).record(), -self._clock_offset.offset))

    def _holders(self, record: CredentialRecord) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the holders in other processes, and the slots that these state."""
        if not record.leases:
            return (), ()
        found = []
        slots = []
        for lease in record.leases:
            session = next((other for other in self.others if other.id == lease.session), None)
            if session is not None:  # else it is ours, or has ended
                process = describe_process(session)
                found.append(process if lease.requester is None else f"{lease.requester} ({process})")
                slots.append(read_stated_slots(lease.request))
        return tuple(found), tuple(slots)

    # -- sessions ---------------------------------------------------------------------------------------------

    def find_session(self, wanted: str | None) -> StoreSession | None:
        """Return the session with that id, if there is one."""
        return next((session for session in self.sessions if session.id == wanted), None)

    def join(self, me: StoreSession) -> None:
        """Begin session *me*."""
        self.sessions.append(me)
        self.set_own_session(me)
        self.joins = self.me_changed = self._sessions_changed = True

    def find_held(self, tokens: Collection[int]) -> list[tuple[int, int]]:
        """Return credential and token of this session's leases that are among *tokens*."""
        return [
            (number, lease.token)
            for number in list(self._replica.numbers("c"))
            for lease in self._leases(number)
            if lease.session == self.me.id and lease.token in tokens
        ]

    def _take_over(self, before: StoreSession, abandoned: Collection[int]) -> None:
        """Move the leases of session *before* to this one, except the *abandoned* tokens."""
        self.is_continued = True
        self._notified.append(before)  # it is written without a notification
        for number in list(self._replica.numbers("c")):
            leases = self._leases(number)
            mine = [lease for lease in leases if lease.session == before.id]
            if any(lease.token in abandoned for lease in mine):
                self._replica.unreported.add(f"c{number}")
            if any(lease.token not in abandoned for lease in mine):
                moved = tuple(
                    lease.moved_to(self.me.id) if lease in mine and lease.token not in abandoned else lease
                    for lease in leases
                )
                self.records[f"c{number}"] = self._credential(number).with_leases(moved)

    def leave(self) -> None:
        """End our own session, and notify processes that want its slots."""
        me = self.me
        self.sessions.remove(me)
        for credential in self._end_session(me):
            self._notify_next(credential)
        if me.notified_at is not None:
            self._notify_one()

    def _end_session(self, session: StoreSession) -> set[int]:
        self._sessions_changed = True
        self.ended.append(session.id)
        freed = set()
        for number in list(self._replica.numbers("c")):
            gone = [lease for lease in self._leases(number) if lease.session == session.id]
            if gone:
                freed.add(number)
                self._end_leases(number, gone)
        return freed

    def _leases(self, number: int) -> tuple[HeldLease, ...]:
        """Return the leases of a credential, without depending on its record."""
        written = self.records.get(f"c{number}")
        return (written if isinstance(written, CredentialRecord) else self._replica.credential(number)).leases

    def _end_leases(self, number: int, gone: list[HeldLease]) -> None:
        """Remove leases without a release, with their estimated costs; the view is updated later."""
        self.records[f"c{number}"] = self._credential(number).without(gone)
        self._replica.unreported.add(f"c{number}")
        for lease in gone:
            if lease.guessed is not None:
                quota = self._quota(lease.quota)
                self.records[f"q{lease.quota}"] = quota.with_record(without_in_flight(quota.record(), lease.guessed))
                self._replica.unreported.add(f"q{lease.quota}")

    def _record_notified(self, session: StoreSession) -> None:
        self._notified.append(session)
        self.wakeup_sessions.append(session.id)

    # -- leases -----------------------------------------------------------------------------------------------

    def leases_on(self, credential: int) -> list[tuple[str, str, int, float]]:
        """Return the leases on a credential, of all sessions: session, request, token, start."""
        leases = self._credential(credential).leases
        if leases:
            living = {session.id for session in self.sessions}
            orphans = [lease for lease in leases if lease.session not in living]
            if orphans:  # the server has lost their session, so no process would end them
                self._end_leases(credential, orphans)
                self._notify_next(credential)
                leases = self._credential(credential).leases
        to_local = self._clock_offset.to_local
        return [(lease.session, lease.request, lease.token, to_local(lease.granted_at)) for lease in leases]

    def lease(self, bid: SlotRequest, reserved: QuotaReservation) -> SlotGranted:
        """Create a lease. The server grants its token, larger than that of every earlier lease."""
        record = self._credential(bid.credential)
        held = HeldLease.written(
            NEW,
            self.me.id,
            bid.request,
            bid.requester,
            self._clock_offset.to_store(self.now),
            bid.quota,
            list(reserved.guessed) if reserved.guessed else None,
        )
        self.records[f"c{bid.credential}"] = record.with_leases((*record.leases, held))
        self.grants = True
        if reserved.record is not None:
            self._write_record(bid.quota, reserved.record)
        return SlotGranted(NEW, self.now)

    def _mine(self, credential: int, token: int) -> HeldLease | None:
        leases, session = self._credential(credential).leases, self.find_owning_session(token)
        return next((lease for lease in leases if lease.token == token and lease.session == session), None)

    def end(self, credential: int, token: int) -> bool:
        """End a lease of this session. Return False if it is not in force."""
        mine = self._mine(credential, token)
        if self.former.pop(token, None) is not None:
            self._replica.unreported.add(f"c{credential}")  # the view counts it as another session's
        if mine is None:
            return False
        self.records[f"c{credential}"] = self._credential(credential).without([mine])
        self._notify_next(credential)
        return True

    def end_unknown(self, tokens: Sequence[int], but: str | None) -> None:
        """End leases of this session that the view does not have, except that of request *but*.

        They come from a step that took effect without its caller knowing.
        """
        for number in list(self._replica.numbers("c")):
            unknown = [
                lease
                for lease in self._leases(number)
                if lease.session == self.me.id and lease.token not in tokens and lease.request != but
            ]
            if unknown:
                self._end_leases(number, unknown)
                self._notify_next(number)

    def settle(self, credential: int, token: int) -> bool:
        """Mark the cost of a lease as measured, no longer estimated. Return False if it is not in force."""
        mine = self._mine(credential, token)
        if mine is None:
            return False
        if mine.guessed is not None:
            record = self._credential(credential)
            settled = tuple(lease.settled() if lease is mine else lease for lease in record.leases)
            self.records[f"c{credential}"] = record.with_leases(settled)
        return True

    # -- credentials and quotas -------------------------------------------------------------------------------

    def enrol(self, card: CredentialIdentity) -> EnrolledCredential:
        """Register a credential and its quota, if they are new, and return their state."""
        number = self._enrol_credential(card)
        replica = self._replica
        name = encode_json(card.quota)
        quota = replica.find_quota(name)
        if quota is None:
            quota = replica.next_number("q")
            self._read.add(f"q{quota}")
            self.records[f"q{quota}"] = QuotaRecord(name, "{}")
        return EnrolledCredential(self._credential_news(number), self._quota_news(quota))

    def _enrol_credential(self, card: CredentialIdentity) -> int:
        replica = self._replica
        known = replica.find_credential(card.fingerprint)
        if known is not None:
            if replica.credential(known).name != card.name:
                self._rewrite(known, name=card.name)
            return known
        number = replica.next_number("c")
        self._read.add(f"c{number}")
        since = self._clock_offset.to_store(self.now)
        self.records[f"c{number}"] = CredentialRecord.written(card.fingerprint, card.name, "alive", "", since)
        return number

    def _write_record(self, number: int, record: Record) -> None:
        moved = shift_record(record, self._clock_offset.offset)
        self.records[f"q{number}"] = self._quota(number).with_record(moved)

    def write_life(self, number: int, life: str, evidence: str, since: float) -> None:
        """Write whether a credential is alive."""
        self._rewrite(number, life=life, evidence=evidence, since=self._clock_offset.to_store(since))
        self._notify_all()

    def _rewrite(self, number: int, **fields: object) -> None:
        changed = self._credential(number)._replace(**fields)  # type: ignore[arg-type]
        self.records[f"c{number}"] = CredentialRecord.written(*changed[2:], leases=changed.leases)
