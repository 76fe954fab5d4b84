"""Pools of one location work together: each stands for a process, and all have one clock."""

from __future__ import annotations

import asyncio
import base64
import gc
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentos import (
    Credential,
    CredentialCoordinator,
    Lease,
    LeaseLost,
    Limit,
    NoCredentialAvailable,
    NoUsableCredential,
    ParallelCoordinator,
    RateLimited,
)
from agentos.pool.protocols import runtime_of
from agentos.pool.store_protocol import StoreBusy
from agentos.providers import Event, Signal
from agentos.stores.redis.step import RedisStep
from agentos.stores.sqlite.step import SqliteStep
from agentos.testing import FakeClock

from ..background_threads import Background
from .engine_contract import ENGINES, Story, eventually, wait_for_alarm
from .store_contract import STORES, Place, StandingStill, ended

KEY = "shared-secret-one"
KEYS = ("shared-secret-one", "shared-secret-two", "shared-secret-three")
THREADS = ENGINES[0]


def refused(pool: CredentialCoordinator, **ask: Any) -> float | None:
    """The pool grants nothing now; when the next is due, in seconds."""
    with pytest.raises(NoCredentialAvailable) as caught:
        pool.acquire_nowait(**ask)
    return caught.value.next_free_in


# -- leases -------------------------------------------------------------------------------------------------------


def test_a_key_leased_in_one_is_refused_in_the_other(shared: Place) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    lease = one.acquire("item-1")

    assert refused(two) is None  # the next is free when a holder releases one

    assert [row.state for row in two.snapshot()] == ["leased"]
    assert two.get_available_count() == 0
    assert lease.release()
    assert (_held := two.acquire_nowait()).held
    assert refused(one) is None


def test_of_several_slots_all_pools_together_have_no_more(shared: Place) -> None:
    pools = [shared.open(Credential(KEY, slots=4)) for _ in range(3)]
    leases = [pools[number % 3].acquire_nowait() for number in range(4)]

    assert [refused(pool) for pool in pools] == [None] * 3

    leases[0].release()
    assert (_held := pools[2].acquire_nowait()).held
    assert [refused(pool) for pool in pools] == [None] * 3


def test_what_is_given_back_in_one_goes_to_a_thread_that_waits_in_the_other(shared: Place) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    lease = one.acquire()
    waiter = shared.waiting(two, "w")

    lease.release()

    shared.soon(ended(waiter))
    assert waiter.result().requester == "w"


def test_what_is_given_back_in_one_goes_to_a_task_that_waits_in_the_other(shared: Place) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    lease = one.acquire()

    async def story() -> str | None:
        async with two.lease("t") as mine:
            return mine.requester

    task = Background(lambda: asyncio.run(story()))
    eventually(lambda: two.explain("t").state == "waiting")

    lease.release()

    shared.soon(ended(task))
    assert task.result() == "t"


def test_what_is_given_back_in_one_goes_to_a_run_that_waits_in_the_other(shared: Place) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    lease = one.acquire()
    run = ParallelCoordinator(2, two, clock=shared.clock)
    story = Background(lambda: run.execute_parallel(range(3), lambda item, key: item, str))
    eventually(lambda: two.explain("0").state == "waiting")

    lease.release()

    shared.soon(ended(story))
    stats, _ = story.result()
    assert stats.success_count == 3
    assert (_held := one.acquire_nowait()).held


def test_a_key_goes_to_and_fro_between_those_who_wait_in_both(shared: Place) -> None:
    pools = [shared.open(KEY), shared.open(KEY)]
    turns: list[int] = []

    def live(number: int) -> None:
        for _ in range(10):
            with pools[number].lease():
                turns.append(number)

    lives = [Background(lambda number=number: live(number)) for number in range(2)]  # type: ignore[misc]

    def over() -> bool:
        shared.clock.advance(0.05)  # as long as they live: who was not called looks after a while
        return not any(each.running for each in lives)

    eventually(over)
    for each in lives:
        each.result()
    assert sorted(turns) == [0] * 10 + [1] * 10


def test_two_pools_whose_credentials_only_overlap_share_what_both_have(shared: Place) -> None:
    one = shared.open(*(Credential(KEYS[n], name=name) for n, name in ((0, "a"), (1, "b"))))
    two = shared.open(*(Credential(KEYS[n], name=name) for n, name in ((1, "b"), (2, "c"))))
    leases = [one.acquire_nowait(), one.acquire_nowait()]
    assert [lease.name for lease in leases] == ["a", "b"]

    mine = two.acquire_nowait()
    assert mine.name == "c"
    refused(two)
    leases[1].release()

    assert (_held := two.acquire_nowait()).name == "b"
    refused(one)


def test_the_same_secret_under_two_names_is_one_credential(shared: Place) -> None:
    one = shared.open(Credential(KEY, name="alice"))
    two = shared.open(Credential(KEY, name="bob"))

    with one.lease() as lease:
        refused(two)  # one slot between them
        lease.rate_limited(60)

    assert refused(two) == pytest.approx(60)
    assert [(row.name, row.state) for row in two.snapshot()] == [("bob", "cooling")]


def test_the_same_name_with_different_secrets_are_two_credentials(shared: Place) -> None:
    one = shared.open(Credential(KEYS[0], name="main"))
    two = shared.open(Credential(KEYS[1], name="main"))
    lease = one.acquire_nowait()

    mine = two.acquire_nowait()
    lease.rejected("401")
    lease.release()

    assert mine.held
    assert mine.release()
    assert two.acquire_nowait().reveal() == KEYS[1]
    with pytest.raises(NoUsableCredential):
        one.acquire_nowait()


def test_keep_free_counts_the_slots_of_both(shared: Place) -> None:
    one, two = (shared.open(*KEYS, keep_free=1) for _ in range(2))
    first, _ = one.acquire_nowait(), two.acquire_nowait()

    refused(one)
    refused(two)

    first.release()
    assert (_held := two.acquire_nowait()).held


def test_tokens_grow_over_all_pools_and_over_restarts(shared: Place) -> None:
    pools = [shared.open(*KEYS), shared.open(*KEYS)]
    tokens = []
    for _ in range(3):
        for pool in (*pools, *reversed(pools)):
            with pool.lease() as lease, pool.lease() as another:
                tokens += [lease.token, another.token]
        pools = [shared.restart(pool, *KEYS) for pool in pools]

    assert len(tokens) == 24
    assert tokens == sorted(set(tokens))


def test_a_string_reserved_in_one_is_refused_in_the_other(shared: Place) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    assert one.reserve(timeout=0) == KEY

    assert two.reserve(timeout=0) is None
    two.release(KEY)  # it has no reservation of its own, and the other's is not its to end
    assert two.acquire_credential() is None
    one.mark_rate_limited(KEY, 30)
    assert two.acquire_credential() is None
    shared.clock.advance(30)

    assert two.acquire_credential() == KEY


# -- what one knows the other knows -------------------------------------------------------------------------------

Report = Callable[[Lease], object]


class Known:
    """A fact about a credential: how it comes about, and when it is over, if ever by itself."""

    def __init__(self, state: str, over: float | None, report: Report, *limits: Limit) -> None:
        self.state = state
        self.over = over
        self.limits = limits
        self._report = report

    def credential(self, secret: str = KEY, name: str | None = None) -> Credential:
        return Credential(secret, name=name, limits=self.limits)

    def comes_about(self, pool: CredentialCoordinator) -> None:
        with pool.lease("reporter", cost={"tokens": 60}) as lease:
            self._report(lease)


def _nothing(lease: Lease) -> None:
    """It was used, and that is all."""


KNOWN = {
    "a cooling": Known("cooling", 60.0, lambda lease: lease.rate_limited(60)),
    "a parking": Known("parked", 7200.0, lambda lease: lease.rate_limited(7200)),
    "a death": Known("dead", None, lambda lease: lease.rejected("401 invalid key")),
    "no money": Known("spent", None, lambda lease: lease.spent("insufficient_quota")),
    "a bucket used up": Known("limited", 30.0, _nothing, Limit("requests", 1, per=30)),
    "a window used up": Known("limited", 30.0, _nothing, Limit("requests", 1, per=30, window="sliding")),
    "a day used up": Known("limited", 3600.0, _nothing, Limit("requests", 1, per="day")),
    "an overrun": Known("limited", 40.0, lambda lease: lease.settle(tokens=100), Limit("tokens", 60, per=60)),
}
known_facts = pytest.mark.parametrize("known", KNOWN.values(), ids=list(KNOWN))


@pytest.fixture(autouse=True)
def an_hour_before_midnight(request: pytest.FixtureRequest) -> None:
    if "shared" in request.fixturenames:
        clock: FakeClock = request.getfixturevalue("shared").clock
        clock.wall_offset = 1_700_006_400.0 - 3600.0 - clock.now()


def is_known(pool: CredentialCoordinator, known: Known, over: float | None) -> None:
    """The pool will not use the credential, and says what it is and until when."""
    if over is None:
        with pytest.raises(NoUsableCredential):
            pool.acquire_nowait(cost={"tokens": 1})
    else:
        # An overrun of tokens: the first that fits is due a second after the debt is paid.
        assert refused(pool, cost={"tokens": 1}) == pytest.approx(over, abs=1.0 + 1e-6)
    row = pool.snapshot()[0]
    assert row.state == known.state
    assert bool(row.why)


def is_over(pool: CredentialCoordinator) -> None:
    assert pool.acquire_nowait(cost={"tokens": 1}).release()


@known_facts
def test_what_one_knows_the_other_knows_at_its_next_request(shared: Place, known: Known) -> None:
    one, two = shared.open(known.credential()), shared.open(known.credential())

    known.comes_about(one)

    is_known(two, known, known.over)
    if known.over is not None:
        shared.clock.advance(known.over + 1)
        is_over(two)


def test_a_model_family_that_rests_in_one_rests_in_the_other(shared: Place) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    with one.lease(model="gpt-4o") as lease:
        lease.rate_limited(60, model="gpt-4o-2024-08-06")

    assert refused(two, model="gpt-4o") == pytest.approx(60)
    assert (_held := two.acquire_nowait(model="gpt-4o-mini")).held


def test_a_later_deadline_wins_whichever_pool_tells_it(shared: Place) -> None:
    one, two = (shared.open(Credential(KEY, slots=3)) for _ in range(2))
    long, short = one.acquire(), two.acquire()

    long.rate_limited(60)
    short.rate_limited(5)

    assert refused(one) == pytest.approx(60)
    assert refused(two) == pytest.approx(60)


def test_a_thread_that_waits_in_the_other_is_told_when_the_last_key_dies(shared: Place) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    lease = one.acquire()
    waiter = shared.waiting(two, "w")

    lease.rejected("401")

    shared.soon(ended(waiter))
    with pytest.raises(NoUsableCredential):
        waiter.result()


def unauthorized(host: str) -> dict[str, object]:
    """An answer of 401, as lease.report takes it."""
    return {"status": 401, "headers": {}, "body": None, "url": f"https://{host}/v1/models"}


def test_refusals_by_an_unknown_host_count_for_this_run_only_and_not_in_the_store(shared: Place) -> None:
    key = Credential("sk-proj-made-up-key", name="a")
    one, two = shared.open(key), shared.open(key)

    for _ in range(3):
        with one.lease(timeout=0) as lease:
            lease.report(unauthorized("example.org"))

    assert [row.state for row in one.snapshot()] == ["dead"]
    with pytest.raises(NoUsableCredential, match="refused three times by a host"):
        one.acquire_nowait()
    assert [row.state for row in two.snapshot()] == ["available"]
    assert two.acquire_nowait().release()
    assert shared.open(key).acquire_nowait().release()
    runtime_of(one).end_run()
    assert one.acquire_nowait().release()


def test_a_refusal_by_another_provider_counts_nowhere_and_one_by_its_own_everywhere(shared: Place) -> None:
    key = Credential("sk-ant-made-up-key", name="a")
    one, two = shared.open(key), shared.open(key)

    for _ in range(4):
        with one.lease(timeout=0) as lease:
            lease.report(unauthorized("api.openai.com"))

    assert [row.state for pool in (one, two) for row in pool.snapshot()] == ["available"] * 2
    with one.lease(timeout=0) as lease:
        lease.report(unauthorized("api.anthropic.com"))
    with pytest.raises(NoUsableCredential):
        two.acquire_nowait()
    assert [row.state for pool in (one, two) for row in pool.snapshot()] == ["dead"] * 2


def no_answer(pool: CredentialCoordinator) -> None:
    """All its keys get no answer at once."""
    for lease in [pool.acquire_nowait() for _ in KEYS]:
        lease.report(Signal(Event.NETWORK, evidence=("connection refused",)))
        lease.release()


def busy(pool: CredentialCoordinator) -> None:
    """The provider of all its keys is busy."""
    for lease in [pool.acquire_nowait() for _ in KEYS]:
        lease.report(Signal(Event.BUSY, evidence=("503",), provider="openai", status=503))
        lease.release()


@pytest.mark.parametrize("fail", [no_answer, busy])
def test_an_outage_pauses_the_process_that_met_it_and_no_other(
    shared: Place, fail: Callable[[CredentialCoordinator], None]
) -> None:
    healthy, cut_off = shared.open(*KEYS), shared.open(*KEYS)

    fail(cut_off)

    assert refused(cut_off) == pytest.approx(1.0)
    assert {row.state for row in cut_off.snapshot()} == {"cooling"}
    assert {row.state for row in healthy.snapshot()} == {"available"}
    for lease in [healthy.acquire_nowait() for _ in KEYS]:
        lease.release()
    assert refused(cut_off) == pytest.approx(1.0)  # it has read what the other wrote, and still pauses


def test_after_an_outage_one_request_goes_first_in_the_process_that_met_it_and_no_other(shared: Place) -> None:
    keys = Credential(KEYS[0], name="a", slots=3)
    healthy, cut_off = shared.open(keys), shared.open(keys)
    for lease in [cut_off.acquire_nowait() for _ in range(3)]:
        lease.report(Signal(Event.NETWORK, evidence=("connection refused",)))
        lease.release()
    shared.clock.advance(1.0)

    probe = cut_off.acquire_nowait()

    refused(cut_off)
    assert [lease.release() for lease in [healthy.acquire_nowait(), healthy.acquire_nowait()]] == [True, True]
    refused(cut_off)
    probe.report(Signal(Event.OK))
    probe.release()
    assert [lease.release() for lease in [cut_off.acquire_nowait(), cut_off.acquire_nowait()]] == [True, True]


def test_a_probe_after_an_outage_that_the_store_could_not_write_is_not_waited_for(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = shared.open(KEY)
    for _ in range(3):
        with pool.acquire_nowait() as lease:
            lease.report(Signal(Event.NETWORK, evidence=("connection refused",)))
    shared.clock.advance(1.0)

    def fail(*_: object) -> None:
        raise StoreBusy

    with monkeypatch.context() as patched:
        for step in (SqliteStep, RedisStep):
            patched.setattr(step, "lease", fail)
        refused(pool)
    shared.clock.advance(1.0)

    assert pool.acquire_nowait().release()


def test_a_key_that_is_revived_in_one_is_alive_in_the_other(shared: Place) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    with one.lease() as lease:
        lease.rejected("401")

    two.revive("key-1")

    assert one.acquire_nowait().release()
    assert (_held := two.acquire_nowait()).held


def test_what_is_settled_in_one_counts_in_the_other(shared: Place) -> None:
    one, two = (shared.open(Credential(KEY, slots=9, tpm=60)) for _ in range(2))
    lease = one.acquire(cost={"tokens": 60})
    assert refused(two, cost={"tokens": 30}) == pytest.approx(30)

    lease.settle(tokens=10)

    with two.lease(timeout=0, cost={"tokens": 30}) as mine:
        assert mine.held
    assert [row.limits[0].left for pool in (one, two) for row in pool.snapshot()] == [pytest.approx(20)] * 2


def test_of_unknown_cost_one_is_in_flight_in_all_pools_until_the_first_settle(shared: Place) -> None:
    one, two = (shared.open(Credential(KEY, slots=9, tpm=60)) for _ in range(2))
    lease = one.acquire()
    refused(two)

    lease.settle(tokens=10)

    assert (_held := two.acquire_nowait()).held
    assert two.snapshot()[0].limits[0].left == pytest.approx(40)


def test_a_quota_is_shared_by_its_keys_in_both(shared: Place) -> None:
    def member(secret: str, name: str) -> Credential:
        return Credential(secret, name=name, quota="acme", limits=[Limit("requests", 2, per=60)])

    one, two = shared.open(member(KEYS[0], "a")), shared.open(member(KEYS[1], "b"))
    one.acquire().release()
    mine = two.acquire()

    assert refused(one) == pytest.approx(30)
    mine.rate_limited(45)
    assert refused(one) == pytest.approx(45)
    mine.spent("insufficient_quota")
    with pytest.raises(NoUsableCredential):
        one.acquire_nowait()
    one.revive("a")
    shared.clock.advance(45)
    assert (_held := one.acquire_nowait()).held


def test_a_quota_that_is_shared_is_another_than_a_keys_own_of_that_name(shared: Place) -> None:
    one = shared.open(Credential(KEYS[0], name="acme"))
    two = shared.open(Credential(KEYS[1], name="b", quota="acme"))

    with one.lease() as lease:
        lease.rate_limited(60)

    assert (_held := two.acquire_nowait()).held


# -- clearing by hand ---------------------------------------------------------------------------------------------


@known_facts
def test_what_is_cleared_in_one_is_cleared_in_the_other(shared: Place, known: Known) -> None:
    one, two = shared.open(known.credential(name="a")), shared.open(known.credential(name="b"))
    known.comes_about(one)
    is_known(two, known, known.over)

    one.clear("a")

    is_over(two)


def test_what_is_cleared_in_one_wakes_a_thread_that_waits_in_the_other(shared: Place) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    with one.lease() as lease:
        lease.rate_limited(7200)
    waiter = shared.waiting(two, "w")

    one.clear("key-1")

    shared.soon(ended(waiter))
    assert waiter.result().held


# -- restarts -----------------------------------------------------------------------------------------------------


def forget_the_only_pool(shared: Place) -> None:
    """Nobody has it any more; the interpreter ends it, as it does at the end of a process."""
    shared.pools.clear()
    gc.collect()


ENDS: dict[str, Callable[[Place], object]] = {
    "the first was closed": Place.close,
    "the first was forgotten": forget_the_only_pool,
    "the first goes on": lambda shared: None,
}


@pytest.mark.parametrize("end", ENDS)
@known_facts
def test_a_pool_that_is_opened_later_knows_it(shared: Place, known: Known, end: str) -> None:
    known.comes_about(shared.open(known.credential()))
    ENDS[end](shared)

    again = shared.open(known.credential())

    is_known(again, known, known.over)


@known_facts
def test_a_pool_that_is_opened_after_a_while_waits_only_for_the_rest(shared: Place, known: Known) -> None:
    pool = shared.open(known.credential())
    known.comes_about(pool)
    pool.close()

    shared.clock.advance(10)
    again = shared.open(known.credential())

    is_known(again, known, None if known.over is None else known.over - 10)


@pytest.mark.parametrize("known", [k for k in KNOWN.values() if k.over], ids=[n for n, k in KNOWN.items() if k.over])
def test_what_time_has_ended_between_two_pools_is_over(shared: Place, known: Known) -> None:
    pool = shared.open(known.credential())
    known.comes_about(pool)
    pool.close()
    assert known.over is not None

    shared.clock.advance(known.over + 1)

    is_over(shared.open(known.credential()))


def test_what_requests_were_seen_to_use_is_known_after_a_restart(shared: Place) -> None:
    def credential() -> Credential:
        return Credential(KEY, slots=9, tpm=600)

    pool = shared.open(credential())
    with pool.lease() as lease:
        lease.settle(tokens=200)

    again = shared.restart(pool, credential())

    several = [again.acquire_nowait(), again.acquire_nowait()]  # with 200 each, not one in flight
    assert all(lease.held for lease in several)
    assert again.snapshot()[0].limits[0].left == pytest.approx(0)


def test_a_lease_in_force_outlives_the_close_of_its_pool_and_is_free_at_once_when_given_back(shared: Place) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    lease = one.acquire()
    waiter = shared.waiting(two, "w")

    one.close()
    assert lease.held
    assert lease.reveal() == KEY
    assert waiter.running
    assert lease.release()

    shared.soon(ended(waiter))
    assert waiter.result().held


def test_what_a_forgotten_pool_held_is_free_soon(shared: Place) -> None:
    def credentials() -> list[Credential]:
        return [Credential(KEYS[0]), Credential(KEYS[1], tpm=60)]

    first = shared.open(*credentials())
    for _ in range(2):
        first.reserve_credential("held")  # the second of unknown cost, in flight
    del first
    forget_the_only_pool(shared)

    again = shared.open(*credentials())
    leases: list[Lease] = []

    def both_are_had() -> bool:
        try:
            leases.append(again.acquire_nowait())
        except NoCredentialAvailable:
            return False
        return len(leases) == 2

    shared.soon(both_are_had)  # a thread of the first ends what it held
    assert all(lease.held for lease in leases)


def test_a_pool_that_is_closed_looks_after_nothing_any_more(shared: Place) -> None:
    pool = shared.open(KEY)
    lease = pool.acquire()
    pool.close()
    shared.pass_time(1)

    lease.release()

    shared.soon(lambda: not shared.clock.sleepers)


def test_a_pool_knows_nothing_of_another_place(shared: Place, tmp_path: Path) -> None:
    here, elsewhere = shared.open(KEY), shared.elsewhere(tmp_path / "elsewhere").open(KEY)
    with here.lease() as lease:
        lease.rate_limited(60)

        assert elsewhere.acquire_nowait().release()
    assert elsewhere.acquire_nowait().release()
    elsewhere.close()


# -- the time to live ---------------------------------------------------------------------------------------------

TTL = 30.0


@pytest.fixture(params=["its pool has noticed", "its pool stands still"])
def lost(shared: Place, request: pytest.FixtureRequest) -> tuple[Lease, CredentialCoordinator]:
    """A lease whose time to live is over without anybody having had the time to renew it, and another pool."""
    stands_still = request.param == "its pool stands still"
    clock = StandingStill(shared.clock) if stands_still else shared.clock
    one = shared.open(Credential(KEY, tpm=600), lease_ttl=TTL, clock=clock)
    two = shared.open(Credential(KEY, tpm=600), lease_ttl=TTL)
    lease = one.acquire("late", cost={"tokens": 100})
    shared.pass_time(TTL + 1)
    return lease, two


Lost = tuple[Lease, CredentialCoordinator]


def test_a_lease_past_its_time_to_live_is_not_held(lost: Lost) -> None:
    lease, _ = lost

    assert not lease.held


def test_a_lease_past_its_time_to_live_reveals_nothing(lost: Lost) -> None:
    lease, _ = lost

    with pytest.raises(LeaseLost) as caught:
        lease.reveal()

    assert (caught.value.name, caught.value.token) == ("key-1", lease.token)


LATE: dict[str, Callable[[Lease], bool]] = {
    "release": lambda lease: lease.release(),
    "settle": lambda lease: lease.settle(tokens=599),
    "rate_limited": lambda lease: lease.rate_limited(3600),
    "rejected": lambda lease: lease.rejected("401"),
    "spent": lambda lease: lease.spent("insufficient_quota"),
}


@pytest.mark.parametrize("late", LATE)
def test_a_lease_past_its_time_to_live_changes_nothing(lost: Lost, late: str) -> None:
    lease, two = lost

    assert not LATE[late](lease)

    assert (_held := two.acquire_nowait(cost={"tokens": 500})).held
    row = two.snapshot()[0]
    assert (row.state, row.leases) == ("leased", 1)


@pytest.mark.parametrize("late", LATE)
def test_the_next_holder_is_unharmed_by_one_that_comes_late(lost: Lost, late: str) -> None:
    lease, two = lost
    mine = two.acquire("next", cost={"tokens": 100})
    before = two.snapshot()

    assert not LATE[late](lease)

    assert mine.held
    assert mine.token > lease.token
    assert two.snapshot() == before
    assert mine.reveal() == KEY
    assert mine.release()


def test_who_waits_gets_the_lease_that_was_not_renewed_in_time(shared: Place) -> None:
    one, two = shared.open(KEY, lease_ttl=TTL), shared.open(KEY, lease_ttl=TTL)
    _held = one.acquire("stuck")
    waiter = shared.waiting(two, "w")

    shared.clock.advance(TTL + 1)

    shared.soon(ended(waiter))
    assert waiter.result().requester == "w"


def test_a_lease_that_was_lost_leaves_nothing_in_flight(shared: Place) -> None:
    one, two = (shared.open(Credential(KEY, slots=9, tpm=600), lease_ttl=TTL) for _ in range(2))
    _held = one.acquire("of unknown cost")
    refused(two)

    shared.pass_time(TTL + 1)

    assert (_held_2 := two.acquire_nowait()).held


def test_a_pool_that_lost_its_leases_goes_on_with_new_ones(shared: Place) -> None:
    one = shared.open(KEY, lease_ttl=TTL)
    old = one.acquire()
    shared.pass_time(TTL + 1)

    new = one.acquire_nowait()

    assert new.held
    assert new.token > old.token
    assert not old.release()
    assert new.release()


def test_a_lease_is_renewed_as_long_as_its_pool_lives(shared: Place) -> None:
    one = shared.open(KEY, lease_ttl=TTL)
    lease = one.acquire()

    for _ in range(12):
        shared.pass_time(TTL / 4)

    assert lease.held
    assert lease.reveal() == KEY
    refused(shared.open(KEY, lease_ttl=TTL))
    assert lease.release()


# -- secrets ------------------------------------------------------------------------------------------------------


def test_no_piece_of_a_secret_is_in_what_is_kept(shared: Place) -> None:
    secrets = ["sk-proj-Zq8vN3xT7wLmB5kR2", "Yh4jUe9sDfGc6pAq1oXiVn0t"]
    credentials = [Credential(secret, name=f"key-{n}", rpm=100, tpm=10_000) for n, secret in enumerate(secrets)]
    pool = shared.open(*credentials)
    other = shared.open(*credentials)
    acts: list[Callable[[Lease], object]] = [
        lambda lease: lease.settle(tokens=50),
        lambda lease: lease.rate_limited(f"retry with {secrets[0]}"),
        lambda lease: lease.rejected(f"401: Incorrect API key provided: {secrets[0]}, nor {secrets[1][:15]}"),
        lambda lease: lease.spent(f"insufficient_quota for {secrets[1]}"),
    ]
    for act in acts:
        for using in (pool, other):
            with using.lease(f"worker of {secrets[0]} and {secrets[1][4:16]}", timeout=0) as lease:
                held_still = shared.kept()
                act(lease)
            for name in ("key-0", "key-1"):
                using.clear(name)
            _assert_clean(held_still | shared.kept(), secrets)
    leases = [pool.acquire(f"holds {secrets[1]}") for _ in secrets]
    waiter = shared.waiting(other, f"waits with {secrets[0]}")
    _assert_clean(shared.kept(), secrets)
    leases[0].release()
    shared.soon(ended(waiter))
    for using in (pool, other):
        using.close()
    _assert_clean(shared.kept(), secrets)


def _assert_clean(kept: dict[str, bytes], secrets: list[str]) -> None:
    assert any(kept.values()), "nothing was kept, so nothing was looked at"
    for secret in secrets:
        raw = secret.removeprefix("sk-proj-").encode()  # the prefix is public
        for form in (raw, raw.hex().encode(), base64.b64encode(raw), raw[::-1]):
            pieces = {form[at : at + 8] for at in range(len(form) - 7)}
            for path, content in kept.items():
                assert not [piece for piece in pieces if piece in content or piece in path.encode()], path


# -- a run that goes on -------------------------------------------------------------------------------------------


class Provider:
    """A strict limiter: of each key so many calls in any minute. What is more it rejects, and says only "soon"."""

    def __init__(self, clock: FakeClock, calls: int) -> None:
        self.clock = clock
        self.calls = calls
        self.answered: dict[str | None, list[float]] = defaultdict(list)
        self.rejected: dict[str | None, int] = defaultdict(int)
        self._lock = threading.Lock()

    def call(self, item: Any, key: str | None) -> str:
        with self._lock:
            now = self.clock.now()
            recent = [at for at in self.answered[key] if at > now - 60]
            if len(recent) >= self.calls:
                self.rejected[key] += 1
                raise RateLimited(1)
            self.answered[key].append(now)
            return f"answer to {item}"

    @property
    def count(self) -> int:
        return sum(map(len, self.answered.values()))


CALLS_A_MINUTE = 8
A_MINUTE = 60.01  # starts count a little longer, since calls do not arrive at the intervals at which they start
ITEMS = 2 * CALLS_A_MINUTE * len(KEYS)


def half_a_run_then_the_rest(place: Place, tmp_path: Path) -> tuple[Provider, Story]:
    """A run is stopped at half with every window used up; a new process goes on with it at once."""
    provider = Provider(place.clock, CALLS_A_MINUTE)
    limit = Limit("requests", CALLS_A_MINUTE, per=60, window="sliding")

    def process() -> tuple[CredentialCoordinator, ParallelCoordinator]:
        pool = place.open(*(Credential(secret, slots=4, limits=[limit]) for secret in KEYS))
        journal = tmp_path / "journal"
        return pool, ParallelCoordinator(6, pool, journal=journal, worker_version="1", clock=place.clock)

    pool, run = process()
    story = Story(THREADS, run, range(ITEMS), provider.call)
    eventually(lambda: provider.count == ITEMS // 2)
    wait_for_alarm(place.clock, place.clock.now() + A_MINUTE)
    run.shutdown()
    stats, _ = story.end()
    assert (stats.success_count, sum(provider.rejected.values())) == (ITEMS // 2, 0)
    pool.close()
    _, run = process()
    return provider, Story(THREADS, run, range(ITEMS), provider.call)


def test_a_run_stopped_at_half_goes_on_with_at_most_one_rejection_a_key(shared: Place, tmp_path: Path) -> None:
    provider, story = half_a_run_then_the_rest(shared, tmp_path)

    wait_for_alarm(shared.clock, shared.clock.now() + A_MINUTE)
    shared.clock.advance(A_MINUTE)
    stats, _ = story.end()

    assert (stats.success_count, stats.failed) == (ITEMS, 0)
    assert provider.count == ITEMS
    assert all(provider.rejected[key] <= 1 for key in KEYS), dict(provider.rejected)


def test_the_same_run_with_a_pool_that_shares_nothing_is_rejected_many_times(tmp_path: Path) -> None:
    """So that the test above can fail: what the pool does not know, it has to find out by asking."""
    place = Place(next(store for store in STORES if not store.shared), tmp_path)

    provider, story = half_a_run_then_the_rest(place, tmp_path)

    for _ in range(5):
        wait_for_alarm(place.clock, place.clock.now() + 1)
        place.clock.advance(1)
    eventually(lambda: sum(provider.rejected.values()) > 3 * len(KEYS))
    story.run.shutdown()
    story.end()
