"""SharedPool without a runtime: what one pool does, what another sees, and what the store keeps."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos import Limit
from agentos.errors import NoUsableCredential
from agentos.pool.core.records import PLAIN, Grant, KeySpec, LeaseRequest, Ticket
from agentos.pool.core.states import TicketState
from agentos.providers.signal import Event, Signal
from agentos.stores.process_fairness import DECLINED, NOTIFY_TIMEOUT
from agentos.stores.shared_pool.pool import SharedPool
from agentos.stores.sqlite.file import StoreFile
from agentos.stores.sqlite.store import SqliteStore
from agentos.testing import FakeClock

from .failing_stores import Bells, Faults, sqlite_error

TTL = 30.0
ROOM = 99  # slots, where they are not the matter
TOKENS = Limit("tokens", 640, per=64)


class Pool(SharedPool):
    """A pool as in a process of its own, told the time by the place's clock."""

    def __init__(
        self, place: Place, *limits: Limit, keys: int = 1, slots: int = ROOM, keep_free: int = 0, auto: bool = False
    ) -> None:
        super().__init__(keep_free=keep_free)
        self.clock = place.clock
        self.faults = Faults()
        self.bell = Bells(4001 + len(place.pools))
        file = StoreFile(place.path, self.clock, connect=self.faults.connect)
        self.store = SqliteStore(file, self.clock, self.bell, ttl=TTL, weight=1.0, view=self)
        self.attach(self.store)
        for number in range(keys):
            self.add(KeySpec(f"key-{number}", slots=slots, limits=limits, auto=auto), self.clock.now())
        self.key = self.keys["key-0"]

    def try_take(self, tokens: float | None = None) -> Grant | None:
        ask = PLAIN if tokens is None else LeaseRequest((1.0, tokens, tokens, tokens))
        return self.acquire(ask, None, self.clock.now())

    def take(self, tokens: float | None = None) -> Grant:
        grant = self.try_take(tokens)
        assert grant is not None
        return grant

    def get_in_line(self, model: str | None = None) -> Ticket:
        ticket = Ticket(LeaseRequest(model=model), None)
        self.enqueue(ticket, self.clock.now())
        return ticket

    def cool(self, seconds: float, model: str | None = None) -> None:
        now = self.clock.now()
        self.close_quota(self.key, now + seconds, model=model, evidence="429", now=now)

    def settle_tokens(self, grant: Grant, tokens: float) -> bool:
        return self.settle(grant, (1.0, tokens, tokens, 0.0), self.clock.now()) is not None

    def forget_all(self) -> None:
        self.clear(self.key, self.clock.now())

    def left(self) -> float:
        self.tick(self.clock.now())
        return self.key.quota.limits[0].left(self.clock.now())


class Place:
    """One file, one clock, and the pools that were opened there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.pools: list[Pool] = []

    def open(self, *limits: Limit, **options: Any) -> Pool:
        self.pools.append(Pool(self, *limits, **options))
        return self.pools[-1]

    def row(self, sql: str, *parameters: object) -> tuple[Any, ...]:
        connection = sqlite3.connect(self.path)
        try:
            row: tuple[Any, ...] = connection.execute(sql, parameters).fetchone()
        finally:
            connection.close()
        return row

    def in_flight(self) -> int:
        record = json.loads(self.row("select record from quotas")[0])
        return sum(packed["usage"]["in_flight"] for packed in record["limits"].values() if "usage" in packed)

    def line(self, pool: Pool) -> tuple[Any, ...]:
        """Return a waiting pool's queue entry: since when it waits, and whether it was notified."""
        return self.row("select waiting_since, called_at from sessions where bell = ?", pool.bell.port)

    def locked(self) -> sqlite3.Connection:
        """Another program has the file locked until this is closed."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("begin immediate")
        return connection


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "pool.sqlite")
    yield place
    for pool in place.pools:
        pool.faults.disarm()
        pool.store.leave()  # whatever is put off
        pool.store.close()


# -- limits that not all state ------------------------------------------------------------------------------------


def test_limits_that_one_does_not_state_are_counted_on_by_the_others(place: Place) -> None:
    careful, careless = place.open(TOKENS), place.open(Limit("requests", 8, per=64))
    careful.take(100.0)

    grant = careless.take(50.0)
    careless.cool(5.0)
    careless.end(grant)

    assert careful.left() == 540.0
    assert careful.key.quota.closed_until == place.clock.now() + 5
    assert place.open(Limit("requests", 8, per=64)).left() == 7.0


def test_a_lease_of_unknown_cost_that_outlives_a_reset_blocks_no_request(place: Place) -> None:
    holder, person = place.open(TOKENS), place.open()
    grant = holder.take()

    person.forget_all()
    newcomer = place.open(TOKENS)
    assert newcomer.try_take() is None  # it is still in flight, and one is at a time
    assert holder.end(grant)

    for pool in (holder, newcomer):
        place.clock.advance(1.0)
        assert pool.end(pool.take())


def test_what_is_settled_after_all_was_forgotten_is_not_taken_from_what_others_took_since(place: Place) -> None:
    limit = Limit("tokens", 600, window="sliding")
    holder, person = place.open(limit), place.open()
    grants = [holder.take(100.0) for _ in range(3)]

    person.forget_all()
    newcomer = place.open(limit)
    newcomer.take(10.0)
    assert all(holder.settle_tokens(grant, 150.0) for grant in grants)

    assert newcomer.left() == holder.left() == 590.0


# -- a store that cannot be written ---------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done all the same"])
def test_what_is_settled_counts_once_though_the_store_failed_in_the_middle(place: Place, done: bool) -> None:
    pool, other = place.open(TOKENS), place.open(TOKENS)
    grant = pool.take(100.0)
    pool.faults.arm("commit", sqlite_error(sqlite3.SQLITE_IOERR), done=done)

    assert pool.settle_tokens(grant, 40.0)

    assert pool.faults.fired_at == "commit"
    assert other.take(100.0)
    pool.end(grant)
    assert pool.left() == other.left() == 500.0
    assert pool.key.quota.limits[0].usage._count == 1


def test_what_the_provider_said_is_known_here_before_it_can_be_written(place: Place) -> None:
    pool, other = place.open(), place.open()
    blocker = place.locked()

    pool.cool(60.0)

    assert pool.key.quota.closed_until == place.clock.now() + 60
    blocker.close()
    pool.tick(place.clock.now())
    assert pool.try_take() is None
    place.clock.advance(0.1)
    pool.maintain(place.clock.now(), called=False)
    assert other.try_take() is None
    assert other.key.quota.closed_until == place.clock.now() + 59.9


def test_of_what_is_settled_twice_while_the_store_is_busy_the_last_word_counts_and_counts_once(place: Place) -> None:
    pool, other = place.open(TOKENS), place.open(TOKENS)
    grant = pool.take(100.0)
    blocker = place.locked()
    assert pool.settle_tokens(grant, 40.0)
    assert pool.settle_tokens(grant, 70.0)
    assert other.left() == 540.0  # it could not be written yet

    blocker.close()
    assert pool.end(grant)  # and with it what was put off

    assert pool.left() == other.left() == 570.0


def test_a_lease_released_after_its_expiry_is_lost(place: Place) -> None:
    pool, _ = place.open(), place.open()
    late, early = pool.take(), pool.take()
    blocker = place.locked()
    assert pool.end(early)

    place.clock.advance(TTL)

    assert not pool.end(late)
    assert pool.find_loss_reason(late, place.clock.now()) is not None
    blocker.close()


def test_a_lease_that_was_lost_and_is_given_back_takes_nothing_from_the_next(place: Place) -> None:
    pool, other = place.open(TOKENS), place.open(TOKENS)
    lost = pool.take()
    place.clock.advance(TTL)
    other.tick(place.clock.now())
    other.take()

    assert not pool.end(lost)

    assert place.in_flight() == 1
    assert other.try_take() is None  # of unknown cost, one at a time


@pytest.mark.parametrize("given_up", [False, True], ids=["it was not renewed", "the others gave it up"])
def test_a_session_that_is_lost_teaches_nothing_and_the_pool_goes_on(place: Place, given_up: bool) -> None:
    pool = place.open(keys=2, slots=1, auto=True)
    lost = [pool.take(), pool.take()]
    pool.report(lost[0], Signal(Event.BUSY), place.clock.now())
    before = place.row("select record from quotas")
    place.clock.advance(TTL)
    if given_up:
        other = place.open(keys=2, slots=1, auto=True)
        other.tick(place.clock.now())

    pool.tick(place.clock.now())

    assert all(pool.find_loss_reason(grant, place.clock.now()) is not None for grant in lost)
    assert not any(pool.end(grant) for grant in lost)
    assert place.row("select record from quotas") == before
    assert not any(key.proven for key in pool.keys.values())
    assert (pool._memory.troubled, pool._memory.well) == ({}, set())
    assert all(key.quota.concurrency is not None and not key.quota.concurrency._in_flight for key in pool.keys.values())
    again = pool.take()
    assert pool.end(again)
    assert again.key.proven  # from what ends well it still learns


# -- several that want the same -----------------------------------------------------------------------------------


def test_keep_free_is_applied_to_what_others_hold_and_not_to_what_was_known_of_it(place: Place) -> None:
    pool, other = (place.open(keys=2, slots=1, keep_free=1) for _ in range(2))
    pool.end(pool.take())  # so that it would take the second next
    other.take()

    assert pool.try_take() is None

    assert place.row("select count(*) from leases") == (1,)


def test_when_it_is_anothers_turn_a_pool_waits_for_a_moment_and_asks_no_more(place: Place) -> None:
    pool, other = place.open(slots=1), place.open(slots=1)
    grant = pool.take()
    other.get_in_line()
    place.clock.advance(1.0)
    pool.end(grant)

    assert pool.try_take() is None

    assert pool.not_before == place.clock.now() + NOTIFY_TIMEOUT
    pool.faults.arm("begin", AssertionError("it asked again"), done=False)
    assert pool.try_take() is None
    place.clock.advance(NOTIFY_TIMEOUT + 0.01)
    pool.faults.disarm()
    assert pool.try_take() is not None


def test_a_pool_that_finds_enough_for_all_waiters_does_not_wait_for_them(place: Place) -> None:
    pool, other = place.open(keys=2, slots=1), place.open(keys=2, slots=1)
    grants = [pool.take(), pool.take()]
    other.get_in_line()
    place.clock.advance(1.0)
    for grant in grants:
        pool.end(grant)

    assert pool.try_take() is not None


def test_a_free_key_that_nobody_ahead_would_take_lets_no_pool_jump_the_line(place: Place) -> None:
    """Enough for all who wait is enough of what they wait for."""
    special = frozenset({("tier", "a")})
    pool, other = place.open(slots=1), place.open(slots=1)  # with a key that is free all the time
    for each in (pool, other):
        each.add(KeySpec("special", slots=1, labels=special), place.clock.now())
    ask = LeaseRequest(labels=special)
    grant = pool.acquire(ask, None, place.clock.now())
    assert grant is not None
    other.enqueue(Ticket(ask, None), place.clock.now())
    place.clock.advance(1.0)
    pool.end(grant)

    assert pool.acquire(ask, None, place.clock.now()) is None

    assert pool.not_before == place.clock.now() + NOTIFY_TIMEOUT  # it is the other's turn
    assert place.row("select count(*) from leases") == (0,)
    other.maintain(place.clock.now(), called=True)
    assert [held.key.name for held in other.leases.values()] == ["special"]


def test_a_pool_that_waits_for_a_model_that_cools_is_neither_called_nor_waited_for_meanwhile(place: Place) -> None:
    pool, other = place.open(slots=2), place.open(slots=2)
    grant = other.take()
    other.cool(3600.0, model="m")
    ticket = pool.get_in_line(model="m")
    since = place.clock.now()
    place.clock.advance(1.0)

    other.take()  # the last slot, at once, though the other is ahead
    other.end(grant)

    assert place.line(pool) == (since, None)
    assert pool.bell.port not in other.bell.take_rings()
    assert other.take()
    assert ticket.state is TicketState.WAITING


def test_a_pool_that_could_use_what_another_holds_is_called_though_it_expects_a_cooling_to_end_first(
    place: Place,
) -> None:
    """Whoever gives the other key back must not take it again and again until the cooling is over."""
    pool, other = place.open(keys=2, slots=1), place.open(keys=2, slots=1)
    other.cool(3600.0)
    grant = other.take()
    ticket = pool.get_in_line()
    assert ticket.starts_at == place.clock.now() + 3600.0
    place.clock.advance(1.0)

    other.end(grant)

    assert pool.bell.port in other.bell.take_rings()
    assert other.try_take() is None  # it is the other's turn
    pool.maintain(place.clock.now(), called=True)
    assert ticket.state is TicketState.GRANTED


def test_a_pool_whose_waiter_was_served_says_so_again_when_the_next_one_waits(place: Place) -> None:
    pool, other = place.open(slots=1), place.open(slots=1)
    grant = other.take()
    first = pool.get_in_line()
    since = place.clock.now()
    assert place.line(pool) == (since, None)
    other.end(grant)
    place.clock.advance(1.0)
    pool.maintain(place.clock.now(), called=True)
    assert first.state is TicketState.GRANTED
    assert place.line(pool) == (None, None)

    pool.get_in_line()

    assert place.line(pool) == (since + 1.0, None)


def test_a_pool_that_is_called_for_what_it_cannot_use_passes(place: Place) -> None:
    pool, other = place.open(slots=1), place.open(slots=1)
    grant = other.take()
    ticket = pool.get_in_line(model="m")
    other.cool(60.0, model="m")
    other.end(grant)
    assert place.line(pool) == (place.clock.now(), place.clock.now())

    pool.maintain(place.clock.now(), called=True)

    assert ticket.state is TicketState.WAITING
    assert place.line(pool) == (place.clock.now(), DECLINED)


def test_a_pool_whose_session_was_lost_is_in_line_again(place: Place) -> None:
    pool, other = place.open(slots=1), place.open(slots=1)
    other.take()
    pool.get_in_line()
    place.clock.advance(TTL - 1.0)
    other.maintain(place.clock.now(), called=False)
    place.clock.advance(1.0)

    pool.maintain(place.clock.now(), called=False)
    pool.tick(place.clock.now())

    assert place.line(pool) == (place.clock.now(), None)


def test_a_pool_that_waits_is_told_when_another_has_spent_the_last_money(place: Place) -> None:
    pool, other = place.open(slots=1), place.open(slots=1)
    other.take()
    ticket = pool.get_in_line()

    other.spend(other.key, "insufficient_quota", place.clock.now())
    pool.maintain(place.clock.now(), called=False)

    assert ticket.state is TicketState.FAILED
    assert isinstance(ticket.error, NoUsableCredential)


# -- one that is alone ----------------------------------------------------------------------------------------------


def test_a_process_that_is_alone_does_not_write_down_that_it_waits(place: Place) -> None:
    alone = place.open(slots=1)
    alone.take()

    alone.get_in_line()

    assert place.line(alone) == (None, None)


def test_who_waited_alone_is_known_to_wait_once_somebody_else_is_there(place: Place) -> None:
    alone = place.open(slots=1)
    grant = alone.take()
    first, second = alone.get_in_line(), alone.get_in_line()

    other = place.open(slots=1)
    assert other.try_take() is None
    alone.release(grant, place.clock.now())

    assert (first.state, second.state) == (TicketState.GRANTED, TicketState.WAITING)
    assert place.line(alone)[0] is not None


def test_who_waited_alone_lines_up_as_soon_as_somebody_else_does_something(place: Place) -> None:
    """Without a step of its own: where others take what comes free at once, it would never have one."""
    alone = place.open(slots=1)
    alone.take()
    alone.get_in_line()
    other = place.open(slots=1)
    other.get_in_line()

    other.cool(5.0)
    alone.maintain(place.clock.now(), called=False)

    assert place.line(alone)[0] is not None
