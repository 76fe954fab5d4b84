"""PeerSessions: which sessions count as expired, and when the next check is due."""

from __future__ import annotations

import pytest

from agentos.pool.core.limits.base import FOREVER
from agentos.stores.process_fairness import StoreSession
from agentos.stores.redis.clock_offset import ClockOffset
from agentos.stores.redis.peers import PeerSessions, any_renewed_after

AHEAD = ClockOffset(1000.0)
PATIENCE = 10.0


@pytest.fixture
def company() -> PeerSessions:
    company = PeerSessions(lambda: PATIENCE)
    company.on_join("me.1", 100.0)
    return company


def seen(company: PeerSessions, now: float, **ends_at: float) -> PeerSessions:
    sessions = tuple((f"{name}.1", at + AHEAD.offset) for name, at in ends_at.items())
    company.update(sessions, now + AHEAD.offset, now, AHEAD)
    return company


def test_without_peers_no_check_is_due(company: PeerSessions) -> None:
    assert seen(company, 105.0, me=120.0).next_check_at == FOREVER


def test_the_next_look_is_when_the_first_of_the_others_runs_out(company: PeerSessions) -> None:
    assert seen(company, 105.0, me=110.0, other=130.0).next_check_at == 130.0


def test_an_expired_peer_counts_as_gone(company: PeerSessions) -> None:
    seen(company, 140.0, other=140.0, me=150.0)

    assert (company.expired, company.next_check_at) == (["other.1"], 140.0)


def test_a_new_process_waits_before_a_peer_counts_as_gone(company: PeerSessions) -> None:
    seen(company, 105.0, other=90.0)

    assert (company.expired, company.next_check_at) == ([], 100.0 + PATIENCE)


def test_a_process_that_joins_again_waits_again(company: PeerSessions) -> None:
    company.on_join("me.2", 200.0)

    assert seen(company, 205.0, other=150.0).expired == []
    assert seen(company, 200.0 + PATIENCE, other=150.0).expired == ["other.1"]


def test_a_process_that_joins_again_drops_what_it_assumed_before(company: PeerSessions) -> None:
    seen(company, 200.0, other=150.0)

    company.on_join("me.2", 200.0)

    assert (company.expired, company.next_check_at) == ([], 200.0 + PATIENCE)


def test_a_process_is_a_newcomer_until_it_has_waited(company: PeerSessions) -> None:
    assert PeerSessions(lambda: PATIENCE).is_newcomer(1e9)
    assert company.is_newcomer(100.0)
    assert not company.is_newcomer(100.0 + PATIENCE)


def test_others_were_renewed_if_one_that_was_there_lasts_longer_than_from_then() -> None:
    assert any_renewed_after(100.0, {"other.1": 131.0}, {"other.1": 30.0})
    assert not any_renewed_after(100.0, {"other.1": 129.0}, {"other.1": 30.0})


def test_one_that_was_not_there_before_bears_no_witness() -> None:
    assert not any_renewed_after(100.0, {"fresh.1": 131.0}, {"other.1": 30.0})


def test_a_clock_of_ours_that_is_a_little_fast_does_not_ask_again_and_again(company: PeerSessions) -> None:
    company.update((("other.1", 1140.001),), 1140.0, 140.002, AHEAD)

    assert company.next_check_at > 140.002


def test_who_was_ended_is_not_ended_again(company: PeerSessions) -> None:
    seen(company, 140.0, other=120.0, third=130.0)

    company.remove(["other.1"])

    assert company.expired == ["third.1"]


def test_a_session_that_would_outlast_its_time_to_live_is_noticed(company: PeerSessions) -> None:
    sessions = [StoreSession("usual.1", 0.0, ttl=30.0), StoreSession("odd.1", 0.0, ttl=30.0)]
    seen(company, 140.0, usual=170.0, odd=3700.0)

    assert [session.id for session in company.find_expiring_too_late(sessions, 0.5, 140.0)] == ["odd.1"]


def test_a_new_process_waits_before_it_corrects_an_expiry(company: PeerSessions) -> None:
    seen(company, 105.0, odd=3700.0)

    assert company.find_expiring_too_late([StoreSession("odd.1", 0.0, ttl=30.0)], 0.5, 105.0) == []
