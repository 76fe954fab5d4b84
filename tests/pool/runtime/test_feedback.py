"""Holders report answers and exceptions: how they are read, applied and logged."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, CredentialState, NoCredentialAvailable
from agentos.errors import AgentOSError
from agentos.providers import Event, Reading, Signal
from agentos.testing import FakeClock

SECRET = "sk-reports-0123456789abcdef"
OTHER = "sk-reports-another-9876543210"


def answer(status: int = 200, body: object = None, **headers: str) -> dict[str, Any]:
    """An answer as a worker may have it in hand."""
    return {
        "status": status,
        "headers": {name.replace("_", "-"): value for name, value in headers.items()},
        "body": body,
    }


def client_error(status: int, body: object = None, client: str = "openai", **headers: str) -> Exception:
    """An exception as that client makes it, known by its shape."""
    base = type("APIError", (Exception,), {"__module__": client})
    error: Any = type("APIStatusError", (base,), {"__module__": client})(f"Error code: {status}")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    error.response = SimpleNamespace(status_code=status, headers=named, url=f"https://api.{client}.com/v1")
    error.status_code, error.body = status, body
    return error  # type: ignore[no-any-return]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def pool_of(clock: FakeClock, *credentials: Credential, **options: Any) -> CredentialCoordinator:
    given = credentials or (Credential(SECRET, name="a", slots=9),)
    return CredentialCoordinator(list(given), clock=clock, debug=True, **options)


def state(pool: CredentialCoordinator, name: str = "a") -> CredentialState:
    return next(row for row in pool.snapshot() if row.name == name)


# -- what it is taken for -----------------------------------------------------------------------------------------


def test_an_exception_of_a_client_cools_its_quota_for_as_long_as_it_says(clock: FakeClock) -> None:
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        signal = lease.report(client_error(429, retry_after="20"))

    assert signal is not None
    assert signal.event is Event.LIMITED
    row = state(pool)
    assert row.state == "cooling"
    assert row.rate_limited_until == pytest.approx(clock.wall() + 20.0)
    assert "retry-after: 20" in (row.why or "")


def test_an_answer_that_went_well_tells_how_much_is_left(clock: FakeClock) -> None:
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        lease.report(
            answer(
                x_ratelimit_limit_requests="60",
                x_ratelimit_remaining_requests="3",
                x_ratelimit_reset_requests="57s",
            )
        )

    (limit,) = state(pool).limits
    assert (limit.dimension, limit.amount, limit.left, limit.learned) == ("requests", 60.0, 3.0, True)
    assert [lesson.what for lesson in state(pool).history] == ["limit of 60 requests, told by x-ratelimit-*-requests"]
    assert state(pool).history[0].at == clock.wall()


def test_a_signal_is_taken_as_it_is(clock: FakeClock) -> None:
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        assert lease.report(Signal(Event.OK)) == Signal(Event.OK)
        assert lease.report(Signal(Event.PARKED, 7200.0, evidence=("my own rule",))) is not None

    assert (state(pool).state, state(pool).why) == ("parked", "my own rule")


@pytest.mark.parametrize("thing", [None, 7, "429", object(), ValueError("429"), {}, [], b"", lambda: 429])
def test_what_no_client_makes_says_nothing(clock: FakeClock, thing: object) -> None:
    pool = pool_of(clock)
    before = pool.snapshot()

    with pool.acquire_nowait() as lease:
        assert lease.report(thing) is None

    assert pool.snapshot() == before


@pytest.mark.parametrize(
    "facts",
    [
        {"delay": "20"},
        {"evidence": (1, None, b"x")},
        {"usage": {"tokens": "x", "requests": None, "output_tokens": -1.0}},
        {"usage": {1: 2.0}},
        {"readings": (1, None, "x")},
        {"readings": (Reading("requests", "60", b"0", window=[]),)},  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("event", [Event.OK, Event.LIMITED, Event.PARKED, Event.BUSY])
def test_a_signal_of_ones_own_that_makes_no_sense_is_no_error(
    clock: FakeClock, event: Event, facts: dict[str, Any]
) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a", slots=9, tpm=1000))

    with pool.acquire_nowait(cost={"tokens": 10}) as lease:
        signal = lease.report(Signal(event, **facts))

    assert signal is not None
    assert signal.event is event
    assert state(pool).leases == 0


@pytest.mark.parametrize("status", ["allowed", "allowed_warning"])
def test_a_subscription_that_goes_on_beyond_its_share_does_not_rest(clock: FakeClock, status: str) -> None:
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        lease.report(
            answer(
                anthropic_ratelimit_unified_status=status,
                anthropic_ratelimit_unified_5h_utilization="1.07",
                anthropic_ratelimit_unified_5h_reset=str(clock.wall() + 5000.0),
            )
        )

    assert state(pool).state == "available"


def test_the_lease_goes_on_after_a_report(clock: FakeClock) -> None:
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        lease.report(client_error(429, retry_after="20"))
        assert lease.held
        lease.report(client_error(503))
        assert lease.held

    assert not lease.held


def test_a_report_of_a_lease_that_was_given_back_is_no_error_and_changes_nothing(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(clock)
    lease = pool.acquire_nowait()
    lease.release()
    before = pool.snapshot()

    signal = lease.report(client_error(429, retry_after="20"))

    assert signal is not None
    assert pool.snapshot() == before
    assert "what was taken for LIMITED" in caplog.text


def test_what_was_used_is_settled_from_the_answer(clock: FakeClock) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a", slots=9, tpm=1000))
    lease = pool.acquire_nowait(cost={"tokens": 800})

    lease.report(answer(body={"usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}}))

    assert state(pool).limits[0].left == 850.0


def test_an_answer_that_tells_of_nothing_touches_nothing(clock: FakeClock) -> None:
    pool = pool_of(clock)
    before = pool.snapshot()

    with pool.acquire_nowait() as lease:
        lease.report(answer(body={"usage": {"prompt_tokens": 100, "completion_tokens": 50}}))

    assert pool.snapshot() == before


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (401, {"code": "invalid_api_key"}, "dead"),
        (429, {"code": "insufficient_quota"}, "spent"),
        (400, None, "available"),
        (413, None, "available"),
        (503, None, "available"),
    ],
)
def test_what_becomes_of_the_credential(clock: FakeClock, status: int, body: object, expected: str) -> None:
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        lease.report(client_error(status, body))

    assert state(pool).state == expected


def test_a_waiter_is_told_at_once_when_the_last_key_is_dead(clock: FakeClock) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a"))
    lease = pool.acquire_nowait()
    lease.report(client_error(401, {"code": "invalid_api_key"}))
    lease.release()

    with pytest.raises(Exception, match="1 dead"):
        pool.acquire(timeout=5.0)


# -- what people are told -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (Event.LIMITED, logging.INFO),
        (Event.BUSY, logging.INFO),
        (Event.NETWORK, logging.INFO),
        (Event.PARKED, logging.WARNING),
        (Event.NOT_ENTITLED, logging.WARNING),
        (Event.RAMP, logging.WARNING),
        (Event.MONEY_GONE, logging.ERROR),
        (Event.KEY_DEAD, logging.ERROR),
    ],
)
def test_how_loud_each_event_is(clock: FakeClock, caplog: pytest.LogCaptureFixture, event: Event, level: int) -> None:
    caplog.set_level(logging.DEBUG, "agentos")
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        lease.report(Signal(event, 12.0, evidence=("because",)))

    name = event.name.lower().replace("_", " ")
    assert (level, f"[COORDINATOR] a: {name}, for 12.0s (because)") in [
        (record.levelno, record.getMessage()) for record in caplog.records
    ]


def test_the_callers_own_faults_are_not_logged(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        for event in (Event.OK, Event.CALLER, Event.NEVER_FITS):
            lease.report(Signal(event, readings=(Reading("requests", 60.0, 5.0),)))

    assert "[COORDINATOR] a:" not in caplog.text


def test_retries_that_a_client_did_by_itself_are_warned_of_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(clock)

    for lease in [pool.acquire_nowait() for _ in range(3)]:
        lease.report(Signal(Event.LIMITED, 0.0, provider="openai", retried=2))

    told = [text for text in caplog.messages if "by itself" in text]
    assert len(told) == 1
    assert "the openai client retried 2 times" in told[0]
    assert "max_retries=0" in told[0]


def test_keys_of_one_organisation_in_different_quotas_are_warned_of_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a"), Credential(OTHER, name="b"))
    told_by = answer(
        x_ratelimit_limit_requests="60", x_ratelimit_remaining_requests="50", openai_organization="org-acme"
    )

    for _ in range(3):
        leases = [pool.acquire_nowait(), pool.acquire_nowait()]
        for lease in leases:
            lease.report(told_by)
            lease.release()

    told = [text for text in caplog.messages if "one organisation" in text]
    assert len(told) == 1
    assert {"a", "b"} <= set(told[0].replace("[COORDINATOR] ", "").split())


def test_keys_of_one_organisation_in_one_quota_are_as_they_should_be(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a", quota="q"), Credential(OTHER, name="b", quota="q"))

    for lease in (pool.acquire_nowait(), pool.acquire_nowait()):
        lease.report(Signal(Event.LIMITED, 0.0, organisation="org-acme"))

    assert "one organisation" not in caplog.text


def test_the_organisation_is_looked_at_though_the_answer_tells_of_no_limits(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a"), Credential(OTHER, name="b"))

    for lease in (pool.acquire_nowait(), pool.acquire_nowait()):
        lease.report(Signal(Event.OK, organisation="org-acme"))

    assert "one organisation" in caplog.text


def test_keys_refused_at_once_are_logged_as_a_network_problem(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(clock, *(Credential(f"{SECRET}-{name}", name=name) for name in "abc"))

    for lease in [pool.acquire_nowait() for _ in range(3)]:
        lease.report(client_error(401, {"code": "invalid_api_key"}))
        lease.release()

    assert "the network may be to blame" in caplog.text
    assert {row.state for row in pool.snapshot()} == {"cooling"}


@pytest.mark.parametrize("event", [event for event in Event if event is not Event.OK])
def test_no_secret_shows_anywhere(clock: FakeClock, caplog: pytest.LogCaptureFixture, event: Event) -> None:
    caplog.set_level(logging.DEBUG, "agentos")
    pool = pool_of(clock)
    lease = pool.acquire_nowait(model="large")

    signal = lease.report(Signal(event, 30.0, evidence=(f"key {SECRET} is no good", SECRET), status=429))

    lease.release()
    said = ""
    for _ in range(20):
        try:
            _held = pool.acquire_nowait(model="large")
        except AgentOSError as refused:
            said = str(refused)
    everything = repr((signal, pool.snapshot(), pool.explain("x"))) + caplog.text + said
    assert SECRET not in everything
    assert SECRET[3:20] not in everything


def test_long_evidence_is_cut(clock: FakeClock) -> None:
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        signal = lease.report(Signal(Event.PARKED, 7200.0, evidence=("x" * 10_000,)))

    assert signal is not None
    assert len(signal.why) <= 500
    assert len(state(pool).why or "") <= 500


# -- those who share a quota --------------------------------------------------------------------------------------


def test_a_credential_joins_a_quota_of_which_something_was_learned(clock: FakeClock) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a", quota="q"))
    with pool.acquire_nowait() as lease:
        lease.report(Signal(Event.OK, readings=(Reading("requests", 60.0, 50.0),)))

    pool.add(Credential(OTHER, name="b", quota="q"))

    assert [row.name for row in pool.snapshot()] == ["a", "b"]


def test_a_credential_that_states_other_limits_still_cannot_join(clock: FakeClock) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a", quota="q"))
    with pool.acquire_nowait() as lease:
        lease.report(Signal(Event.OK, readings=(Reading("requests", 60.0, 50.0, window=60.0),)))

    with pytest.raises(ValueError, match="limits differ from those of a"):
        pool.add(Credential(OTHER, name="b", quota="q", rpm=60))


# -- waiting ------------------------------------------------------------------------------------------------------


def test_next_free_in_includes_what_was_learned(clock: FakeClock) -> None:
    pool = pool_of(clock)
    with pool.acquire_nowait() as lease:
        lease.report(client_error(429, retry_after="20"))

    with pytest.raises(NoCredentialAvailable) as refused:
        pool.acquire_nowait()

    assert refused.value.next_free_in == pytest.approx(20.0)


def test_auto_slots_are_shown_as_they_are_found(clock: FakeClock) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a", slots="auto"))
    assert state(pool).slots == 1

    pool.acquire_nowait().release()

    assert state(pool).slots == 4
    assert "slots='auto'" in repr(Credential(SECRET, slots="auto"))


# -- leases that end with an error --------------------------------------------------------------------------------


def test_a_lease_that_ends_with_an_error_and_no_report_teaches_nothing(clock: FakeClock) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a", slots="auto"))

    for _ in range(5):
        with pytest.raises(ValueError, match="mine"), pool.acquire_nowait():
            raise ValueError("mine")
    assert state(pool).slots == 1

    with pool.acquire_nowait():
        pass
    assert state(pool).slots > 1


def test_a_lease_of_a_coroutine_that_ends_with_an_error_and_no_report_teaches_nothing(clock: FakeClock) -> None:
    pool = pool_of(clock, Credential(SECRET, name="a", slots="auto"))

    async def use(error: Exception | None) -> None:
        async with await pool.acquire_async():
            if error is not None:
                raise error

    for _ in range(5):
        with pytest.raises(ValueError, match="mine"):
            asyncio.run(use(ValueError("mine")))
    assert state(pool).slots == 1

    asyncio.run(use(None))
    assert state(pool).slots > 1


def test_a_probe_that_ends_with_an_error_and_no_report_lets_the_next_one_go_first(clock: FakeClock) -> None:
    pool = pool_of(clock)
    with pool.acquire_nowait() as lease:
        lease.report(Signal(Event.PARKED, 7200.0, evidence=("day",)))
    clock.advance(7200.0)

    with pytest.raises(ValueError, match="mine"), pool.acquire_nowait():
        raise ValueError("mine")

    with pool.acquire_nowait(), pytest.raises(NoCredentialAvailable):
        pool.acquire_nowait()
    assert len([pool.acquire_nowait() for _ in range(3)]) == 3


# -- what is remembered -------------------------------------------------------------------------------------------


def test_the_kinds_of_what_was_not_understood_that_are_remembered_are_bounded(clock: FakeClock) -> None:
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        for number in range(1100):
            lease.report(type(f"Odd{number}", (), {})())

    assert len(pool._runtime.feedback._unknown) == 1000
    assert {type(kind) for kind in pool._runtime.feedback._unknown} == {str}  # and keep no class alive


def test_the_organisations_that_are_remembered_are_bounded(clock: FakeClock) -> None:
    pool = pool_of(clock)

    with pool.acquire_nowait() as lease:
        for number in range(1100):
            lease.report(Signal(Event.OK, organisation=f"org-{number}"))

    assert len(pool._runtime.feedback._organisations) == 1000
