"""The replica parses records as they were written, in the process's own time."""

from __future__ import annotations

import pytest

from agentos.pool.core.quota_codec import pack_claim, unpack_claim
from agentos.stores.process_fairness import DECLINED, StoreSession
from agentos.stores.redis.clock_offset import ClockOffset
from agentos.stores.redis.replica import NEW, CredentialRecord, HeldLease, QuotaRecord, Replica, UnreadableRecord
from agentos.stores.redis.session_record import SESSION_LIST, encode_session, encode_session_list, record_name

HOST = "here"
AHEAD = ClockOffset(1000.0)
ALIVE = CredentialRecord.written("ab12", 'a "name"\nof two lines', "alive", "", 17.5)


def held(token: int, request: str = "r.1") -> HeldLease:
    return HeldLease.written(token, "me.1", request, "worker", 20.25, 3, ["tokens per 60s"])


def replica_of(**texts: str) -> Replica:
    replica = Replica()
    replica.apply_updates([word for name, text in texts.items() for word in (name, "4", text)], 4)
    return replica


def test_a_credential_is_read_as_it_was_written() -> None:
    record = ALIVE.with_leases((held(7), held(8, "r.2")))

    assert replica_of(c1=record.text()).credential(1) == record


def test_a_quota_is_read_as_it_was_written() -> None:
    quota = QuotaRecord('"key ab12"', '{"limits":{}}')

    assert replica_of(q2=quota.text()).quota(2) == quota
    assert quota.record() == {"limits": {}}


def test_a_new_lease_has_its_token_from_the_server_in_text_and_record() -> None:
    record = ALIVE.with_leases((held(7), held(NEW, "r.2")))
    replica = Replica()

    replica.apply_own_writes({"c1": record.text()}, {"c1": record}, 5, token=9)

    known = replica.credential(1)
    assert [lease.token for lease in known.leases] == [7, 9]
    assert replica_of(c1=known.text()).credential(1) == known
    assert replica.versions["c1"] == 5


def test_a_lease_whose_cost_is_settled_is_the_same_otherwise() -> None:
    settled = held(7).settled()

    assert settled.guessed is None
    assert settled[1:-1] == held(7)[1:-1]
    assert replica_of(c1=ALIVE.with_leases((settled,)).text()).credential(1).leases == (settled,)


def test_updates_are_unreported_except_sessions() -> None:
    replica = replica_of(c1=ALIVE.text(), **line_of(waiting()))

    assert replica.unreported == {"c1"}
    assert replica.seen == 4


def waiting() -> StoreSession:
    session = StoreSession("me.1", 0.0, 2.0, 3.5, 150.0, " 1 2 ", 151.5, 160.0, pack_claim(3, 155.0, {"tokens": 9.0}))
    session.pid, session.ttl = 4711, 30.0
    return session


def fields_of(session: StoreSession) -> dict[str, object]:
    return {name: getattr(session, name) for name in StoreSession.__slots__}


def line_of(*sessions: StoreSession, served: float = 0.0) -> dict[str, str]:
    """All the records of a line, as a process writes them whose clock is behind the store's."""
    texts = {record_name(each.id): encode_session(each, served, AHEAD, HOST) for each in sessions}
    return {SESSION_LIST: encode_session_list(sessions, 0.0), **texts}


def test_the_queue_is_read_as_it_was_written() -> None:
    sessions, served = replica_of(**line_of(waiting(), served=6.25)).read_queue(AHEAD, HOST)

    assert served == 6.25
    assert [fields_of(session) for session in sessions] == [fields_of(waiting())]


def test_the_virtual_time_is_that_of_the_newest_record() -> None:
    ahead, behind = waiting(), waiting()
    behind.id = "other.1"
    texts = line_of(ahead, behind, served=6.25)
    texts[record_name(behind.id)] = encode_session(behind, 5.25, AHEAD, HOST)

    assert replica_of(**texts).read_queue(AHEAD, HOST)[1] == 6.25
    texts[SESSION_LIST] = encode_session_list([ahead, behind], 7.25)  # one is gone who had come farther
    assert replica_of(**texts).read_queue(AHEAD, HOST)[1] == 7.25


def test_a_process_with_another_clock_reads_the_same_moments() -> None:
    (session,), _ = replica_of(**line_of(waiting())).read_queue(ClockOffset(400.0), "elsewhere")

    assert (session.waiting_since, session.notified_at, session.idle_until) == (750.0, 751.5, 760.0)
    assert session.claim is not None
    assert unpack_claim(session.claim)[1] == 755.0
    assert session.host == HOST


def test_a_process_that_has_passed_is_known_to_have_by_every_clock() -> None:
    session = waiting()
    session.notified_at = DECLINED

    (read,), _ = replica_of(**line_of(session)).read_queue(ClockOffset(400.0), HOST)

    assert read.notified_at == DECLINED


def test_a_session_that_was_changed_in_vain_is_what_it_was() -> None:
    replica = replica_of(**line_of(waiting()))
    replica.read_queue(AHEAD, HOST)[0][0].notified_at = None

    replica.invalidate_sessions([record_name("me.1")])

    assert replica.read_queue(AHEAD, HOST)[0][0].notified_at == 151.5


def test_a_session_is_present_while_the_list_contains_it() -> None:
    replica = replica_of(**line_of(waiting()))
    assert replica.read_queue(AHEAD, HOST)[0]

    replica.apply_updates([SESSION_LIST, "5", encode_session_list([], 0.0)], 5)

    assert replica.read_queue(AHEAD, HOST)[0] == []
    assert record_name("me.1") not in replica.versions


def test_a_session_of_which_the_server_has_forgotten_all_but_the_name_is_not_there() -> None:
    assert replica_of(**{SESSION_LIST: encode_session_list([waiting()], 6.25)}).read_queue(AHEAD, HOST) == ([], 6.25)


def test_who_has_forgotten_everything_asks_for_everything() -> None:
    replica = replica_of(c1=ALIVE.text())

    replica.forget()

    assert (replica.seen, replica.versions, replica.unreported) == (0, {}, set())


@pytest.mark.parametrize("text", ["", "nonsense", "[1,2]", '["a","b","alive","",1.0]\n[broken'])
def test_what_is_no_credential_is_said_to_be_unreadable(text: str) -> None:
    with pytest.raises(UnreadableRecord, match="the record of a credential is not readable"):
        replica_of(c1=text).credential(1)


@pytest.mark.parametrize("text", ["nonsense", "[1]", "[[],[]]"])
def test_a_malformed_session_list_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadableRecord, match="the record of who waits is not readable"):
        replica_of(**{SESSION_LIST: text}).read_queue(AHEAD, HOST)


@pytest.mark.parametrize("text", ["", "nonsense", '[0.0,"too short"]'])
def test_what_is_no_session_is_said_to_be_unreadable(text: str) -> None:
    with pytest.raises(UnreadableRecord, match="the record of who waits is not readable"):
        replica_of(**{**line_of(waiting()), record_name("me.1"): text}).read_queue(AHEAD, HOST)


def test_credentials_and_quotas_are_found_by_what_they_are_known_by() -> None:
    replica = replica_of(c7=ALIVE.text(), q2='"key ab12"\n{}')

    assert (replica.find_credential("ab12"), replica.find_quota('"key ab12"')) == (7, 2)
    assert (replica.find_credential("other"), replica.find_quota('"other"')) == (None, None)
    assert (replica.next_number("c"), replica.next_number("q")) == (8, 3)


def test_what_was_written_here_is_found_as_what_others_wrote() -> None:
    replica = Replica()

    replica.apply_own_writes({"c1": ALIVE.text()}, {"c1": ALIVE}, 5, token=None)

    assert (replica.find_credential("ab12"), replica.next_number("c")) == (1, 2)


def test_what_is_forgotten_is_not_found() -> None:
    replica = replica_of(c7=ALIVE.text())
    assert replica.find_credential("ab12") == 7

    replica.forget()

    assert (replica.find_credential("ab12"), replica.next_number("c")) == (None, 1)
