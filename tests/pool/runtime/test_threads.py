"""Threads use the pool. Time moves only when a test says so."""

from __future__ import annotations

import logging
import threading

import pytest

from agentos import (
    Credential,
    CredentialCoordinator,
    Lease,
    Limit,
    NeverFits,
    NoCredentialAvailable,
    NoUsableCredential,
    PoolClosed,
)
from agentos.testing import FakeClock

from ...background_threads import Background


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pool(clock: FakeClock) -> CredentialCoordinator:
    return CredentialCoordinator(["secret-one", "secret-two"], clock=clock, debug=True)


def waiting(pool: CredentialCoordinator, clock: FakeClock, name: str, count: int = 1) -> Background[Lease]:
    call = Background(lambda: pool.acquire(name), name=name)
    clock.wait_for_sleepers(count)
    return call


def test_a_settle_that_lets_the_last_in_line_start_wakes_it(clock: FakeClock) -> None:
    pool = CredentialCoordinator([Credential("secret-one", slots=2, tpm=100)], clock=clock, debug=True)
    first = pool.acquire(cost={"tokens": 100})
    call = Background(lambda: pool.acquire("waits", cost={"tokens": 50}))
    clock.wait_for_sleepers(1)

    first.settle(tokens=10)

    assert call.result().held


def test_a_lease_gives_the_secret_and_gives_it_back(pool: CredentialCoordinator) -> None:
    with pool.lease("item-1") as lease:
        assert lease.name == "key-1"
        assert lease.reveal() == "secret-one"
        assert lease.secret.reveal() == "secret-one"
        assert lease.requester == "item-1"
        assert pool.get_stats()["reserved"] == 1

    assert not lease.held
    assert pool.get_stats()["reserved"] == 0


def test_a_lease_is_given_back_when_the_block_raises(pool: CredentialCoordinator) -> None:
    with pytest.raises(ZeroDivisionError), pool.lease():
        _ = 1 / 0

    assert pool.get_available_count() == 2


def test_a_lease_is_for_one_use(pool: CredentialCoordinator) -> None:
    lease = pool.lease()
    with lease:
        pass

    with pytest.raises(RuntimeError, match="one use"), lease:
        pass


def test_a_lease_not_begun_says_so(pool: CredentialCoordinator) -> None:
    lease = pool.lease()

    for act in (lambda: lease.name, lease.release, lease.reveal, lambda: lease.settle(tokens=1)):
        with pytest.raises(RuntimeError, match="not begun"):
            act()


def test_what_acquire_returns_can_also_be_given_back_by_a_block(pool: CredentialCoordinator) -> None:
    lease = pool.acquire()
    with lease as same:
        assert same is lease

    assert not lease.held


def test_release_is_idempotent_and_a_stale_one_says_so(
    pool: CredentialCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="agentos")
    lease = pool.acquire()
    assert lease.release()
    others = [pool.acquire(), pool.acquire()]

    assert not lease.release()
    assert not lease.settle(tokens=5)
    assert not lease.rate_limited(60)
    assert not lease.rejected("late")
    assert not lease.spent("late")

    assert all(other.held for other in others)
    assert {row.state for row in pool.snapshot()} == {"leased"}
    assert caplog.text.count("has ended; its report of") == 4
    assert "had already ended" in caplog.text


def test_tokens_only_grow(pool: CredentialCoordinator) -> None:
    tokens = []
    for _ in range(5):
        with pool.lease() as lease:
            tokens.append(lease.token)

    assert tokens == sorted(set(tokens))


def test_a_waiter_gets_the_key_that_is_given_back(pool: CredentialCoordinator, clock: FakeClock) -> None:
    first, _ = pool.acquire(), pool.acquire()
    waiter = waiting(pool, clock, "w")

    first.release()

    assert waiter.result().name == "key-1"


def test_waiters_are_served_in_the_order_they_came(pool: CredentialCoordinator, clock: FakeClock) -> None:
    held = [pool.acquire(), pool.acquire()]
    waiters = [waiting(pool, clock, f"w{i}", count=i + 1) for i in range(5)]

    for i in range(5):
        held.pop(0).release()
        held.append(waiters[i].result())
        assert [w.running for w in waiters[i + 1 :]] == [True] * (4 - i)


def test_a_waiter_starts_the_moment_a_cooling_ends(pool: CredentialCoordinator, clock: FakeClock) -> None:
    for _ in range(2):
        with pool.lease() as lease:
            lease.rate_limited(30)
    waiter = waiting(pool, clock, "w")

    clock.advance(29.999)
    clock.wait_for_sleepers(1)
    assert waiter.running
    clock.advance(0.001)

    assert waiter.result().name == "key-1"


def test_each_waiter_starts_at_its_own_instant(pool: CredentialCoordinator, clock: FakeClock) -> None:
    """Whoever takes the first key must see to it that somebody is awake for the second."""
    first, second = pool.acquire(), pool.acquire()
    first.rate_limited(10)
    second.rate_limited(20)
    first.release()
    second.release()
    waiters = [waiting(pool, clock, "w0"), waiting(pool, clock, "w1", count=2)]

    clock.advance(10)
    assert waiters[0].result().name == "key-1"
    clock.wait_for_sleepers(1)
    clock.advance(10)

    assert waiters[1].result().name == "key-2"


def test_a_timeout_says_when_the_next_is_due(pool: CredentialCoordinator, clock: FakeClock) -> None:
    for _ in range(2):
        with pool.lease() as lease:
            lease.rate_limited(60)
    waiter = Background(lambda: pool.acquire(timeout=10))
    clock.wait_for_sleepers(1)

    clock.advance(10)

    with pytest.raises(NoCredentialAvailable) as caught:
        waiter.result()
    assert caught.value.waited == pytest.approx(10)
    assert caught.value.next_free_in == pytest.approx(50)


def test_a_waiter_that_times_out_does_not_take_the_next_ones_turn(
    pool: CredentialCoordinator, clock: FakeClock
) -> None:
    held, _ = pool.acquire(), pool.acquire()
    impatient = Background(lambda: pool.acquire(timeout=5))
    clock.wait_for_sleepers(1)
    patient = waiting(pool, clock, "patient", count=2)

    clock.advance(5)
    with pytest.raises(NoCredentialAvailable):
        impatient.result()
    held.release()

    assert patient.result().held


def test_a_key_due_at_the_very_deadline_is_granted(pool: CredentialCoordinator, clock: FakeClock) -> None:
    for _ in range(2):
        with pool.lease() as lease:
            lease.rate_limited(10)
    waiter = Background(lambda: pool.acquire(timeout=10))
    clock.wait_for_sleepers(1)

    clock.advance(10)

    assert waiter.result().held


def test_acquire_nowait_raises_at_once(pool: CredentialCoordinator) -> None:
    _held = pool.acquire()
    _held_2 = pool.acquire()

    with pytest.raises(NoCredentialAvailable, match=r"in 0\.0s; the next is free when a holder releases one"):
        pool.acquire_nowait()


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon", True])
def test_a_bad_timeout_is_refused(pool: CredentialCoordinator, timeout: object) -> None:
    with pytest.raises(ValueError, match="timeout"):
        pool.lease(timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"cost": {"words": 5}}, "unknown dimension 'words'"),
        ({"cost": {"tokens": -5}}, "tokens must be a number"),
        ({"cost": {"tokens": "5"}}, "tokens must be a number"),
        ({"cost": {"tokens": float("nan")}}, "tokens must be a number"),
        ({"cost": {"requests": 0}}, "requests must be at least 1"),
        ({"cost": 5}, "cost must be a mapping"),
        ({"priority": "high"}, "priority"),
        ({"model": 4}, "model"),
        ({"affinity": 4}, "affinity"),
        ({"labels": [4]}, "labels"),
    ],
)
def test_a_bad_request_names_the_argument(
    pool: CredentialCoordinator, arguments: dict[str, object], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        pool.lease(**arguments)  # type: ignore[arg-type]


def test_an_infeasible_request_fails_at_once(clock: FakeClock) -> None:
    pool = CredentialCoordinator([Credential("secret-one", tpm=1000)], clock=clock, debug=True)

    with pytest.raises(NeverFits):
        pool.acquire(cost={"tokens": 1001})
    with pytest.raises(NoUsableCredential), pool.lease(labels={"tier": "paid"}):
        pass
    with pytest.raises(NoUsableCredential):
        CredentialCoordinator().acquire()


def test_a_dead_key_is_not_used_again_until_revived(pool: CredentialCoordinator, clock: FakeClock) -> None:
    with pool.lease() as lease:
        lease.rejected("401 invalid_api_key")
    other = pool.acquire()
    waiter = waiting(pool, clock, "w")

    assert pool.get_stats() == {
        "total": 2,
        "available": 0,
        "reserved": 1,
        "rate_limited": 0,
        "parked": 0,
        "dead": 1,
    }
    pool.revive("key-1")

    assert waiter.result().name == "key-1"
    assert other.held


def test_a_waiter_is_told_when_the_last_key_dies(pool: CredentialCoordinator, clock: FakeClock) -> None:
    held = [pool.acquire(), pool.acquire()]
    waiter = waiting(pool, clock, "w")

    for lease in held:
        lease.rejected("401")

    with pytest.raises(
        NoUsableCredential, match=r"2 dead; replace the secret .* the same one works again, .*agentos keys clear NAME"
    ):
        waiter.result()


def test_a_credential_may_join_while_others_wait(pool: CredentialCoordinator, clock: FakeClock) -> None:
    _ = pool.acquire(), pool.acquire()
    waiter = waiting(pool, clock, "w")

    name = pool.add("secret-three")

    assert name == "key-3"
    assert waiter.result().name == "key-3"


def test_a_duplicate_cannot_join(pool: CredentialCoordinator) -> None:
    with pytest.raises(ValueError, match="already in the pool as key-1"):
        pool.add("secret-one")
    assert pool.get_stats()["total"] == 2


def test_retiring_the_last_key_tells_those_who_wait(pool: CredentialCoordinator, clock: FakeClock) -> None:
    held = [pool.acquire(), pool.acquire()]
    waiter = waiting(pool, clock, "w")

    pool.retire("key-1")
    pool.retire("key-2")

    with pytest.raises(NoUsableCredential, match="2 retired"):
        waiter.result()
    assert pool.get_stats()["total"] == 2  # still held
    for lease in held:
        assert lease.release()
    assert pool.get_stats()["total"] == 0


def test_an_unknown_name_is_refused_with_those_there_are(pool: CredentialCoordinator) -> None:
    for act in (pool.retire, pool.revive):
        with pytest.raises(ValueError, match="key-1, key-2"):
            act("key-9")


def test_closing_tells_every_waiter_at_once(pool: CredentialCoordinator, clock: FakeClock) -> None:
    held = [pool.acquire(), pool.acquire()]
    waiters = [waiting(pool, clock, "w0"), waiting(pool, clock, "w1", count=2)]

    pool.close()

    for waiter in waiters:
        with pytest.raises(PoolClosed):
            waiter.result()
    with pytest.raises(PoolClosed):
        pool.acquire()
    assert all(lease.release() for lease in held)


def test_a_calendar_limit_is_waited_for_by_the_hour_of_the_day(clock: FakeClock) -> None:
    clock.wall_offset = 1_700_006_400.0 - clock.now() - 3600  # an hour before midnight UTC
    pool = CredentialCoordinator([Credential("secret-one", rpd=1)], clock=clock, debug=True)
    pool.acquire().release()
    waiter = waiting(pool, clock, "w")

    clock.advance(3599)
    clock.wait_for_sleepers(1)
    assert waiter.running
    clock.advance(1)

    assert waiter.result().held


def test_a_wall_clock_set_forward_past_the_reset_is_noticed(clock: FakeClock) -> None:
    clock.wall_offset = 1_700_006_400.0 - clock.now() - 3600
    pool = CredentialCoordinator([Credential("secret-one", rpd=1)], clock=clock, debug=True)
    pool.acquire().release()
    with pytest.raises(NoCredentialAvailable):
        pool.acquire_nowait()

    clock.wall_offset += 7200

    assert (_held := pool.acquire_nowait()).held


def test_max_lease_frees_a_forgotten_key_and_says_so(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    pool = CredentialCoordinator(["secret-one"], max_lease=60, clock=clock, debug=True)
    forgotten = pool.acquire("forgetful")
    waiter = waiting(pool, clock, "w")

    clock.advance(60)

    lease = waiter.result()
    assert not forgotten.release()
    assert lease.held
    lease.release()
    assert "max_lease" in caplog.text
    assert "forgetful" in caplog.text


def test_snapshot_says_what_each_key_is_and_why(clock: FakeClock) -> None:
    pool = CredentialCoordinator(
        [f"secret-number-{i}" for i in range(6)] + [Credential("secret-limited", rpm=1)], clock=clock, debug=True
    )
    leases = [pool.acquire(f"item-{i}") for i in range(7)]
    leases[1].rate_limited(30)
    leases[2].rate_limited(7200)
    leases[3].rejected("401")
    leases[4].spent("insufficient_quota")
    pool.retire("key-6")
    for lease in leases[1:]:
        lease.release()

    rows = {row.name: row for row in pool.snapshot()}

    assert [rows[f"key-{i}"].state for i in range(1, 8)] == [
        "leased",
        "cooling",
        "parked",
        "dead",
        "spent",
        "retired",
        "limited",
    ]
    assert rows["key-1"].reserved_by == "item-0"
    assert rows["key-2"].rate_limited_until == pytest.approx(clock.wall() + 30)
    assert rows["key-2"].why == "item-1 reported a rate limit"
    assert rows["key-4"].why == "401"
    assert rows["key-4"].rate_limited_until == 0.0
    assert rows["key-7"].limits[0].left == pytest.approx(0)
    assert not any(row.is_available for row in rows.values())
    stats = pool.get_stats()
    assert stats == {"total": 6, "available": 0, "reserved": 1, "rate_limited": 2, "parked": 1, "dead": 2}


def test_explain_says_why_one_waits_and_when_it_will_start(pool: CredentialCoordinator, clock: FakeClock) -> None:
    held = pool.acquire("busy")
    with pool.lease() as lease:
        lease.rate_limited(30)
    waiter = waiting(pool, clock, "item-7")
    clock.advance(5)

    said = pool.explain("item-7")

    assert (said.state, said.position, said.waited, said.starts_in) == ("waiting", 1, 5.0, 25.0)
    assert str(said).splitlines()[0] == "item-7 waits as number 1 for 5.0s; it likely starts in about 25.0s"
    assert "key-2: cooling (the caller reported a rate limit), in 25.0s" in str(said)
    assert str(pool.explain("busy")) == "busy is holding key-1"
    assert pool.explain("nobody").state == "unknown"
    held.release()
    waiter.result()


def test_exhaustion_is_logged_once_per_shortage(
    pool: CredentialCoordinator, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentos")
    held = [pool.acquire(), pool.acquire()]
    waiters = [waiting(pool, clock, f"w{i}", count=i + 1) for i in range(3)]
    for _ in range(3):
        held.pop(0).release()
        held.append(waiters.pop(0).result())
    assert caplog.text.count("[COORDINATOR] Credential pool exhausted") == 1
    for lease in held:
        lease.release()

    _ = pool.acquire(), pool.acquire()
    with pytest.raises(NoCredentialAvailable):
        pool.acquire_nowait()

    assert caplog.text.count("[COORDINATOR] Credential pool exhausted") == 2
    assert "all keys rate-limited" not in caplog.text
    assert {record.levelno for record in caplog.records if "exhausted" in record.message} == {logging.INFO}


def test_many_secrets_that_are_too_short_to_be_masked_are_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    pool = CredentialCoordinator([*(Credential(f"k{i}", name=f"short-{i}") for i in range(1000)), "long-enough"])
    pool.add("k1000")

    assert [record.message for record in caplog.records if "too short" in record.message] == [
        "[COORDINATOR] the secrets of 1000 credentials are shorter than 8 characters: too short to be masked "
        "(short-0, short-1, short-2, ...)",
        "[COORDINATOR] the secret of key-1002 is shorter than 8 characters: too short to be masked",
    ]


def test_limited_is_logged_differently_from_exhausted(
    pool: CredentialCoordinator, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with pool.lease() as lease:
            lease.rate_limited(30)
    waiter = waiting(pool, clock, "w")
    clock.advance(30)
    waiter.result()

    assert caplog.text.count("[COORDINATOR] no key is available until") == 1
    assert "exhausted" not in caplog.text


def test_short_waits_at_the_speed_of_a_limit_are_logged_once_a_minute(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    credential = Credential("long-enough", name="k", limits=[Limit("requests", 60, burst=1)])
    pool = CredentialCoordinator([credential], clock=clock)

    for _ in range(90):
        pool.acquire().release()
        waiter = waiting(pool, clock, "w")
        clock.advance(1)
        waiter.result().release()
        clock.advance(1)

    assert caplog.text.count("[COORDINATOR] no key is available until") == 3


def test_an_interrupted_waiter_leaves_the_queue(
    pool: CredentialCoordinator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while waiting: the exception goes up, and the key goes to the next, not to the one that left."""
    held = [pool.acquire(), pool.acquire()]

    def interrupted(sleeper: object, until: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(clock, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.acquire("interrupted")
    waiter = waiting(pool, clock, "next")
    held[0].release()

    assert waiter.result().held
    assert pool.explain("interrupted").state == "unknown"


def test_a_grant_that_comes_in_the_moment_of_an_interrupt_is_passed_on(
    pool: CredentialCoordinator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [pool.acquire(), pool.acquire()]

    def interrupted(sleeper: object, until: float) -> None:
        held[0].release()  # the grant is made ...
        raise KeyboardInterrupt  # ... and never seen

    with monkeypatch.context() as patch:
        patch.setattr(clock, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.acquire("interrupted")

    assert pool.get_available_count() == 1


def test_the_debug_switch_is_also_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_DEBUG", "1")
    assert type(CredentialCoordinator(["secret-one"])._runtime.core).__name__ == "CheckedPool"
    monkeypatch.setenv("AGENTOS_DEBUG", "0")
    assert type(CredentialCoordinator(["secret-one"])._runtime.core).__name__ == "AdaptivePool"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"keep_free": -1}, "keep_free"), ({"keep_free": 2}, "keep_free"), ({"max_lease": 0}, "max_lease")],
)
def test_a_bad_pool_argument_is_named(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CredentialCoordinator(["secret-one", "secret-two"], **arguments)  # type: ignore[arg-type]


def test_library_code_never_prints(pool: CredentialCoordinator, capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("agentos").addHandler(logging.NullHandler())
    _ = pool.acquire(), pool.acquire()
    with pytest.raises(NoCredentialAvailable):
        pool.acquire_nowait()

    assert capfd.readouterr().out == ""


def test_a_pool_closes_at_the_end_of_its_block(clock: FakeClock) -> None:
    with CredentialCoordinator(["secret-one"], clock=clock) as pool:
        pool.acquire().release()

    with pytest.raises(PoolClosed):
        pool.acquire()


def test_a_short_secret_is_warned_of_without_showing_it(caplog: pytest.LogCaptureFixture) -> None:
    CredentialCoordinator(["tiny"])

    assert "key-1 is shorter than 8 characters" in caplog.text
    assert "tiny" not in caplog.text


def test_real_time_wakes_a_real_waiter() -> None:
    """The one test on the machine's own clock: a short cooling ends, and the waiter has the key."""
    pool = CredentialCoordinator(["secret-one"], debug=True)
    with pool.lease() as lease:
        lease.rate_limited(0.02)

    with pool.lease(timeout=10) as lease:
        assert lease.name == "key-1"


def test_a_thread_that_ends_while_holding_keeps_its_lease(pool: CredentialCoordinator) -> None:
    leases: list[Lease] = []
    thread = threading.Thread(target=lambda: leases.append(pool.acquire("ended")))
    thread.start()
    thread.join()

    assert pool.explain("ended").state == "holding"
    assert leases[0].release()
