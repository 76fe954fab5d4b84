"""Who is asked next, who waits and for how long, and what goes up: the rules of a call, in every way it can be made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from typing import Any

import httpx
import httpx2
import pytest

from agentos import (
    Credential,
    CredentialCoordinator,
    Event,
    ForeignHost,
    NoCredentialAvailable,
    NoUsableCredential,
    PoolClosed,
    WouldBlockLoop,
)
from agentos.runs.execution.error_policy import format_error
from agentos.testing import FakeClock
from agentos.transport import Refusal

from ..background_threads import Background
from .fakes import (
    HOST,
    URL,
    WELL,
    Body,
    Provider,
    Says,
    Way,
    in_both_libraries,
    in_every_way,
    leased,
    pool_of,
    states,
    wait_in_line,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def error(code: str = "", message: str = "no") -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def limited(retry_after: float = 30) -> Says:
    return Says(429, error("rate_limit_exceeded"), {"retry-after": str(retry_after), "x-request-id": "req-1"})


REFUSALS = {
    Event.LIMITED: limited(),
    Event.PARKED: Says(429, error("rate_limit_exceeded"), {"retry-after": "7200"}),
    Event.RAMP: Says(429, error("slow_down")),
    Event.KEY_DEAD: Says(401, error("invalid_api_key")),
    Event.MONEY_GONE: Says(429, error("insufficient_quota")),
    Event.NOT_ENTITLED: Says(404, error("model_not_found")),
}


def run_until_done(clock: FakeClock, call: Background[Any], step: float = 0.5) -> None:
    """Let time pass, a little whenever the call waits for it, until the call is over."""
    while call.running:
        with contextlib.suppress(TimeoutError):
            clock.wait_for_sleepers(1, timeout=0.01)
            clock.advance(step)


# -- another key -----------------------------------------------------------------------------------------------------


@in_every_way
@pytest.mark.parametrize("event", REFUSALS, ids=lambda event: event.name)
def test_a_key_that_is_refused_is_told_of_and_another_takes_the_call(way: Way, event: Event, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(REFUSALS[event], WELL)

    answer = way.ask(way.transport(pool, provider))

    assert answer.status_code == 200
    assert provider.keys == ["one", "two"]
    record = answer.extensions["agentos"]
    assert (record.credential, record.waited) == ("two", 0.0)
    assert record.refusals == (Refusal("one", REFUSALS[event].status, event, record.refusals[0].request_id),)
    after = {Event.PARKED: "parked", Event.KEY_DEAD: "dead", Event.MONEY_GONE: "spent", Event.NOT_ENTITLED: "available"}
    assert states(pool)["one"] == after.get(event, "cooling")
    assert leased(pool) == []


@in_every_way
def test_the_refusals_of_a_call_are_told_in_order_with_their_request_ids(way: Way, clock: FakeClock) -> None:
    dead = Says(401, error("invalid_api_key"), {"request-id": "req-2"})
    pool, provider = pool_of(clock, "one", "two", "three"), Provider(limited(), dead, WELL)

    record = way.ask(way.transport(pool, provider)).extensions["agentos"]

    assert record.credential == "three"
    assert record.refusals == (
        Refusal("one", 429, Event.LIMITED, "req-1"),
        Refusal("two", 401, Event.KEY_DEAD, "req-2"),
    )


@in_every_way
def test_a_model_that_one_key_may_not_use_is_asked_of_it_no_more(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(REFUSALS[Event.NOT_ENTITLED], WELL)
    transport = way.transport(pool, provider)

    for _ in range(3):
        way.ask(transport)

    assert provider.keys == ["one", "two", "two", "two"]


@in_every_way
def test_a_limit_of_one_model_leaves_the_key_to_the_others(way: Way, clock: FakeClock) -> None:
    pool = CredentialCoordinator([Credential("sk-proj-planted-0123456789")], clock=clock, debug=True)
    provider = Provider(limited(), WELL)
    transport = way.transport(pool, provider, max_wait=0)
    url = "https://api.openai.com/v1/chat/completions"

    refused, other = (way.ask(transport, url, json={"model": model}) for model in ("gpt-5", "o4"))
    with pytest.raises(NoCredentialAvailable):
        way.ask(transport, url, json={"model": "gpt-5"})

    assert (refused.status_code, other.status_code) == (429, 200)


# -- up, at once -----------------------------------------------------------------------------------------------------


@in_every_way
@pytest.mark.parametrize(
    "line",
    [
        Says(500, error()),
        Says(502, b"<html>bad gateway</html>"),
        Says(503, error("overloaded"), {"retry-after": "1"}),
        Says(529, error("overloaded_error")),
        Says(400, error("invalid_request_error")),
        Says(404, b"no such page"),
        Says(409, error()),
        Says(413, error("request_too_large")),
        Says(422, error()),
        Says(418, b""),
    ],
    ids=lambda line: str(line.status),
)
def test_what_no_key_is_to_blame_for_goes_up_as_it_came(way: Way, line: Says, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(line)

    answer = way.ask(way.transport(pool, provider))

    assert len(provider.seen) == 1
    assert answer.status_code == line.status
    assert answer.content == line.answer_to(answer.request).read()
    assert answer.extensions["agentos"].refusals == ()
    assert leased(pool) == []
    assert states(pool)["one"] == "available"


@in_every_way
def test_a_provider_that_fails_three_times_in_a_row_is_asked_once_by_each_call(way: Way, clock: FakeClock) -> None:
    """By then it is taken to be busy, and its keys rest."""
    pool, provider = pool_of(clock, "one", "two", "three", "four"), Provider(*[Says(500, error())] * 3, WELL)
    transport = way.transport(pool, provider)

    answers = [way.ask(transport) for _ in range(3)]

    assert [(answer.status_code, answer.extensions["agentos"].refusals) for answer in answers] == [(500, ())] * 3
    assert len(provider.seen) == 3


class Nothing(BaseException):
    """None of those that anybody catches."""


def raised_by(library: Any) -> list[BaseException]:
    return [
        library.ConnectError("no way"),
        library.ReadTimeout("too long"),
        library.RemoteProtocolError("not HTTP"),
        OSError(104, "reset"),
        ValueError("a fault of the transport"),
        RuntimeError("another"),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        SystemExit(3),
        Nothing(),
    ]


@in_every_way
@pytest.mark.parametrize("number", range(10), ids=lambda number: type(raised_by(httpx2)[number]).__name__)
def test_whatever_the_sending_raises_goes_up_as_it_is_and_gives_the_slot_back(
    way: Way, number: int, clock: FakeClock
) -> None:
    raised = raised_by(way.library)[number]
    pool, provider = pool_of(clock, "one", "two"), Provider(raised)

    with pytest.raises(type(raised)) as caught:
        way.ask(way.transport(pool, provider))

    if not isinstance(raised, asyncio.CancelledError):  # a loop makes a new one
        assert caught.value is raised
    assert len(provider.seen) == 1
    assert leased(pool) == []


@in_every_way
def test_an_error_names_the_base_url_that_did_not_answer(way: Way, clock: FakeClock) -> None:
    pool = pool_of(clock, "one", base_url="http://127.0.0.1:9/v1")
    refused = way.library.ConnectError("Connection refused")

    with pytest.raises(way.library.ConnectError) as caught:
        way.ask(way.transport(pool, Provider(refused)))

    assert format_error(caught.value) == "Connection refused (no answer from http://127.0.0.1:9)"


@in_every_way
@pytest.mark.parametrize(("raised", "after"), [("ReadTimeout", "available"), ("ConnectTimeout", "cooling")])
def test_a_callers_short_timeouts_close_the_keys_to_nobody_but_a_network_that_is_away_does(
    way: Way, raised: str, after: str, clock: FakeClock
) -> None:
    error = getattr(way.library, raised)
    pool, provider = pool_of(clock, "one", "two"), Provider(error("too long"))
    transport = way.transport(pool, provider)

    for _ in range(3):
        with pytest.raises(error):
            way.ask(transport)

    assert states(pool) == {"one": after, "two": after}


@in_every_way
@pytest.mark.parametrize(
    ("status", "number"),
    [(200, 1), (200, 4), *((status, number) for status in (200, 429, 500) for number in (6, 7))],
    ids=lambda number: str(number) if number > 99 else type(raised_by(httpx2)[number]).__name__,
)
def test_a_body_that_breaks_off_goes_up_and_gives_the_slot_back(
    way: Way, number: int, status: int, clock: FakeClock
) -> None:
    raised = raised_by(way.library)[number]
    body = Body(b"{", raised)
    pool, provider = pool_of(clock, "one", "two"), Provider(Says(status, body, {"content-type": "application/json"}))

    with pytest.raises(type(raised)):
        way.ask(way.transport(pool, provider))

    assert len(provider.seen) == 1
    assert body.closed
    assert leased(pool) == []


@in_every_way
@pytest.mark.parametrize("status", [200, 429])
def test_a_fault_of_our_own_gives_the_slot_back(
    way: Way, status: int, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    pool = pool_of(clock, "one")
    monkeypatch.setattr(pool._runtime, "report_signal", fail)

    with pytest.raises(ZeroDivisionError):
        way.ask(way.transport(pool, Provider(Says(status, {}))))

    assert leased(pool) == []


# -- the same key, later ---------------------------------------------------------------------------------------------


@in_every_way
def test_with_no_other_key_a_call_waits_until_its_own_is_open_again(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider(limited(30), WELL)
    transport = way.transport(pool, provider)
    call = Background(lambda: way.ask(transport))
    clock.wait_for_sleepers(1)
    clock.advance(29.9)
    assert clock.sleepers
    clock.advance(0.1)

    answer = call.result()

    assert answer.status_code == 200
    assert provider.keys == ["one", "one"]
    assert answer.extensions["agentos"].waited == pytest.approx(30)


@in_every_way
def test_a_key_that_is_given_back_serves_a_call_that_was_refused(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(limited(30), WELL)
    transport = way.transport(pool, provider)
    with pool.lease(labels=None) as held:
        call = Background(lambda: way.ask(transport))
        clock.wait_for_sleepers(1)

    call.result()

    assert provider.keys == [{"one": "two", "two": "one"}[held.name], held.name]


@in_every_way
def test_a_provider_that_says_retry_at_once_is_not_hammered(way: Way, clock: FakeClock) -> None:
    began, tried_at = clock.now(), []

    def at_once(_: Any) -> Says:
        tried_at.append(clock.now() - began)
        return limited(0)

    pool, provider = pool_of(clock, "one"), Provider(at_once)
    transport = way.transport(pool, provider)
    call = Background(lambda: way.ask(transport))
    run_until_done(clock, call)

    answer = call.result()

    pauses = [later - earlier for earlier, later in pairwise(tried_at)]
    assert answer.status_code == 429
    assert len(tried_at) == 21
    assert len(answer.extensions["agentos"].refusals) == 20
    assert all(pause >= least for pause, least in zip(pauses, [0, 1, 2, 4, 8, 16, 32, *[60] * 13], strict=True))
    assert answer.extensions["agentos"].waited == pytest.approx(sum(pauses), abs=1)


def wait_for_try(clock: FakeClock, provider: Provider, number: int) -> None:
    """Let time pass, a little whenever the call waits for it, until the provider has seen so many tries."""
    while len(provider.seen) < number:
        with contextlib.suppress(TimeoutError):
            clock.wait_for_sleepers(1, timeout=0.01)
            clock.advance(0.1 if len(provider.seen) < number else 0.0)


@in_both_libraries
def test_a_call_that_is_limited_again_rests_and_its_key_serves_others_meanwhile(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider(limited(0), limited(0), WELL, WELL)
    transport = way.transport(pool, provider)
    limited_twice = Background(lambda: way.ask(transport))
    wait_for_try(clock, provider, 2)

    other = Background(lambda: way.ask(transport, headers={"x-who": "other"}))
    wait_in_line(pool)  # behind the pace that the pool has learned
    wait_for_try(clock, provider, 3)

    assert other.result().status_code == 200
    assert provider.seen[2].headers["x-who"] == "other"
    run_until_done(clock, limited_twice)
    assert limited_twice.result().status_code == 200


@in_both_libraries
def test_a_call_that_a_key_limits_while_it_serves_others_goes_up_after_some_times(way: Way, clock: FakeClock) -> None:
    def line(request: Any) -> Says:
        return limited(0) if request.headers.get("x-size") == "large" else WELL

    pool, provider = pool_of(clock, "one"), Provider(line)
    transport = way.transport(pool, provider)
    large = Background(lambda: way.ask(transport, headers={"x-size": "large"}))
    while large.running:
        run_until_done(clock, Background(lambda: way.ask(transport)), 0.1)

    assert large.result().status_code == 429
    assert len(large.result().extensions["agentos"].refusals) == 6


@in_every_way
def test_the_first_refusal_of_each_key_is_none_that_came_once_more(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two", "three"), Provider(limited(0), limited(0), WELL)

    way.ask(way.transport(pool, provider))

    assert sorted(provider.keys) == ["one", "three", "two"]
    assert "cooling" not in states(pool).values()


@in_every_way
def test_a_call_does_not_pause_after_keys_that_are_dead(way: Way, clock: FakeClock) -> None:
    names = [f"key{number}" for number in range(8)]
    pool = pool_of(clock, *names, quota="of one account")
    dead = Says(401, error("invalid_api_key"), {"retry-after": "30"})
    provider = Provider(*[dead] * 7, WELL)

    answer = way.ask(way.transport(pool, provider))  # nobody moves the clock

    assert answer.status_code == 200
    assert sorted(provider.keys) == names
    assert answer.extensions["agentos"].waited == 0


@in_every_way
def test_a_refused_call_goes_before_those_that_came_later_and_after_those_that_matter_more(
    way: Way, clock: FakeClock
) -> None:
    pool = pool_of(clock, "one")
    calls: list[Background[Any]] = []

    def begin(who: str, **arguments: Any) -> None:
        transport = way.transport(pool, provider, **arguments)
        calls.append(Background(lambda: way.ask(transport, headers={"x-who": who})))

    def refuse_when_others_wait(_: Any) -> Says:
        begin("later")
        begin("urgent", priority=1)
        wait_in_line(pool, 2)
        return limited(30)

    provider = Provider(refuse_when_others_wait, WELL)
    begin("refused")
    wait_in_line(pool, 3)
    clock.advance(30)
    for call in calls:
        run_until_done(clock, call)

    assert [request.headers["x-who"] for request in provider.seen] == ["refused", "urgent", "refused", "later"]


@in_every_way
def test_an_upload_that_is_here_is_sent_again_with_another_key(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(limited(), WELL)

    way.ask(way.transport(pool, provider), files={"file": ("name.txt", b"content")}, data={"purpose": "batch"})

    first, second = (request.read() for request in provider.seen)
    assert first == second
    assert b"content" in first


def pieces() -> Iterator[bytes]:
    yield b"one "
    yield b"two"


async def async_pieces() -> AsyncIterator[bytes]:
    for piece in pieces():
        yield piece


def test_a_body_whose_length_is_known_is_kept_to_be_sent_again(clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(limited(), WELL)
    client = httpx2.Client(transport=pool.transport(provider))

    client.post(URL, content=pieces(), headers={"content-length": "7"})

    assert [request.read() for request in provider.seen] == [b"one two", b"one two"]


@in_every_way
def test_a_body_that_can_be_sent_only_once_is_not_sent_again(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(limited(), WELL)

    answer = way.ask(way.transport(pool, provider), content=async_pieces() if way.in_a_loop else pieces())

    assert answer.status_code == 429
    assert provider.keys == ["one"]
    assert states(pool)["one"] == "cooling"


@pytest.mark.parametrize("library", [httpx2, httpx])
def test_a_body_that_comes_from_a_task_is_not_waited_for_though_its_length_is_known(
    library: Any, clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(limited(), WELL)

    answer = Way(library, in_a_loop=True).ask(
        pool.async_transport(provider), content=async_pieces(), headers={"content-length": "7"}
    )

    assert answer.status_code == 429
    assert provider.keys == ["one"]


# -- how long --------------------------------------------------------------------------------------------------------


@in_every_way
@pytest.mark.parametrize(
    ("arguments", "timeout", "patience"),
    [
        ({}, {"timeout": 5.0, "pool": 20.0}, 20.0),
        ({}, {"timeout": 20.0}, 20.0),
        ({"max_wait": 7}, {"timeout": 20.0}, 7.0),
        ({"max_wait": 25}, {"timeout": 20.0}, 25.0),
        ({"max_wait": 25}, {"timeout": None}, 25.0),
    ],
)
def test_a_call_waits_for_keys_as_long_as_its_own_timeout_or_max_wait_says(
    way: Way, arguments: dict[str, Any], timeout: dict[str, Any], patience: float, clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, "one"), Provider()
    transport = way.transport(pool, provider, **arguments)
    with pool.lease():
        call = Background(lambda: way.ask(transport, timeout=way.library.Timeout(**timeout)))
        clock.wait_for_sleepers(1)
        clock.advance(patience - 0.01)
        assert clock.sleepers
        clock.advance(0.01)

        with pytest.raises(NoCredentialAvailable) as late:
            call.result()

    assert late.value.waited == pytest.approx(patience)
    assert provider.seen == []


@in_every_way
def test_a_call_without_a_timeout_waits_as_long_as_it_takes(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider(limited(500), WELL)
    transport = way.transport(pool, provider)
    call = Background(lambda: way.ask(transport, timeout=None))
    run_until_done(clock, call, step=100)

    assert call.result().extensions["agentos"].waited == 500


@in_every_way
def test_when_the_time_runs_out_the_last_answer_goes_up_as_it_came(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider(limited(30))
    transport = way.transport(pool, provider)
    call = Background(lambda: way.ask(transport, timeout=20))
    clock.wait_for_sleepers(1)
    clock.advance(20)

    answer = call.result()

    assert (answer.status_code, answer.json()) == (429, error("rate_limit_exceeded"))
    assert answer.extensions["agentos"].credential == "one"
    assert len(provider.seen) == 1


@in_every_way
def test_a_call_that_may_not_wait_takes_what_is_free_or_says_so(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider(WELL, limited())
    transport = way.transport(pool, provider, max_wait=0)

    assert [way.ask(transport).status_code for _ in range(2)] == [200, 429]
    with pytest.raises(NoCredentialAvailable):
        way.ask(transport)


# -- no key at all ---------------------------------------------------------------------------------------------------


@in_every_way
@pytest.mark.parametrize("event", [Event.KEY_DEAD, Event.MONEY_GONE, Event.NOT_ENTITLED], ids=lambda event: event.name)
def test_when_no_key_is_left_the_providers_answer_goes_up_and_the_next_call_is_told(
    way: Way, event: Event, clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, "one", "two"), Provider(REFUSALS[event])
    transport = way.transport(pool, provider)

    answer = way.ask(transport)

    assert answer.status_code == REFUSALS[event].status
    assert answer.json() == REFUSALS[event].body
    assert sorted(provider.keys) == ["one", "two"]
    with pytest.raises(NoUsableCredential):
        way.ask(transport)
    assert len(provider.seen) == 2


@in_every_way
def test_a_closed_pool_makes_no_calls(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider()
    transport = way.transport(pool, provider)
    pool.close()

    with pytest.raises(PoolClosed):
        way.ask(transport)

    assert provider.seen == []


@in_every_way
def test_a_call_that_waits_when_the_pool_is_closed_is_told_at_once(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider()
    transport = way.transport(pool, provider)
    with pool.lease():
        call = Background(lambda: way.ask(transport))
        wait_in_line(pool)
        pool.close()

        with pytest.raises(PoolClosed):
            call.result()


@in_every_way
def test_a_call_that_was_refused_when_the_pool_is_closed_hands_up_its_answer(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider(limited())
    transport = way.transport(pool, provider)
    call = Background(lambda: way.ask(transport))
    wait_in_line(pool)
    pool.close()

    assert call.result().status_code == 429


@in_every_way
def test_an_estimate_of_ours_never_makes_a_request_hopeless(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", tpm=1000), Provider()
    huge = {"model": "a-model", "messages": ["word " * 10_000], "max_tokens": 50_000}

    assert way.ask(way.transport(pool, provider), json=huge).status_code == 200


@in_every_way
def test_a_request_that_was_limited_reserves_more_but_never_too_much(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", tpm=1000), Provider(*[limited(1)] * 6, WELL)
    transport = way.transport(pool, provider)
    call = Background(lambda: way.ask(transport, json={"model": "a-model", "max_tokens": 800}))
    run_until_done(clock, call, step=5)

    assert call.result().status_code == 200


# -- in a loop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [httpx2, httpx])
def test_a_sync_call_in_a_loop_is_made_if_a_key_is_free_and_refused_if_it_would_block(
    library: Any, clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, "one"), Provider()
    client = library.Client(transport=pool.transport(provider))

    async def story() -> None:
        assert client.post(URL).status_code == 200
        with pool.lease(), pytest.raises(WouldBlockLoop, match=r"pool\.async_transport\(\)"):
            client.post(URL)

    asyncio.run(story())
    assert len(provider.seen) == 1


@pytest.mark.parametrize("library", [httpx2, httpx])
@pytest.mark.parametrize("retry_after", [0, 30])
def test_a_sync_call_in_a_loop_that_would_have_to_wait_after_a_refusal_gives_its_slot_back(
    library: Any, retry_after: int, clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, "one"), Provider(limited(retry_after))
    client = library.Client(transport=pool.transport(provider))

    async def story() -> None:
        with pytest.raises(WouldBlockLoop):
            client.post(URL, timeout=None)

    asyncio.run(story())
    assert leased(pool) == []


@pytest.mark.parametrize("library", [httpx2, httpx])
@pytest.mark.parametrize(("retry_after", "tries"), [(0, 3), (30, 1)], ids=["between tries", "in line"])
def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing_behind(
    library: Any, retry_after: int, tries: int, clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, "one"), Provider(limited(retry_after))

    async def story() -> None:
        client = library.AsyncClient(transport=pool.async_transport(provider))
        task = asyncio.create_task(client.post(URL, timeout=None))
        while len(provider.seen) < tries or not clock.sleepers:
            await asyncio.sleep(0)
            clock.advance(0.1 if len(provider.seen) < tries else 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert leased(pool) == []
    assert pool._runtime.core.waiting == clock.sleepers == 0


@pytest.mark.parametrize("library", [httpx2, httpx])
def test_a_transport_for_threads_tells_an_asynchronous_client_which_one_it_needs(
    library: Any, clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, "one"), Provider()

    async def story() -> None:
        client = library.AsyncClient(transport=pool.transport(provider))
        with pytest.raises(TypeError, match=r"needs pool\.async_transport\(\), not pool\.transport\(\)"):
            await client.post(URL)

    asyncio.run(story())
    assert leased(pool) == provider.seen == []


@pytest.mark.parametrize("library", [httpx2, httpx])
def test_an_asynchronous_transport_tells_a_client_for_threads_which_one_it_needs(
    library: Any, clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, "one"), Provider()
    client = library.Client(transport=pool.async_transport(provider))

    with pytest.raises(TypeError, match=r"needs pool\.transport\(\), not pool\.async_transport\(\)"):
        client.post(URL)

    assert leased(pool) == provider.seen == []


# -- who is asked ----------------------------------------------------------------------------------------------------


@in_every_way
@pytest.mark.parametrize(
    "affinity",
    ["x-agentos-affinity", lambda request: request.headers.get("x-agentos-affinity")],
    ids=["a header", "a function"],
)
def test_calls_of_one_affinity_get_the_same_key(
    way: Way, affinity: str | Callable[[Any], str | None], clock: FakeClock
) -> None:
    pool, provider = pool_of(clock, *(f"key{number}" for number in range(8))), Provider()
    transport = way.transport(pool, provider, affinity=affinity)

    for conversation in ["a", "b", "c", "a", "b", "c"]:
        way.ask(transport, headers={"X-AgentOS-Affinity": conversation})

    assert provider.keys[:3] == provider.keys[3:]
    assert not any("x-agentos-affinity" in request.headers for request in provider.seen)


@in_every_way
def test_without_an_affinity_the_keys_take_turns(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one", "two", "three"), Provider()
    transport = way.transport(pool, provider, affinity=lambda _: None)

    for _ in range(3):
        way.ask(transport)

    assert sorted(provider.keys) == ["one", "three", "two"]


@in_every_way
def test_an_affinity_that_is_no_text_is_refused_before_anything_is_leased(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider()

    with pytest.raises(ValueError, match="affinity must give text or None for a request, not int"):
        way.ask(way.transport(pool, provider, affinity=lambda _: 5))

    assert leased(pool) == provider.seen == []


@in_every_way
def test_an_affinity_function_that_fails_leaves_nothing_leased(way: Way, clock: FakeClock) -> None:
    pool, provider = pool_of(clock, "one"), Provider()

    with pytest.raises(ZeroDivisionError):
        way.ask(way.transport(pool, provider, affinity=lambda _: str(1 // 0)))

    assert leased(pool) == provider.seen == []


@in_every_way
def test_labels_restrict_which_keys_are_used(way: Way, clock: FakeClock) -> None:
    keys = [Credential(f"planted-{tier}-0123456789", hosts=[HOST], labels={"tier": tier}) for tier in ("free", "paid")]
    pool, provider = CredentialCoordinator(keys, clock=clock, debug=True), Provider()
    transport = way.transport(pool, provider, labels={"tier": "paid"})

    for _ in range(3):
        way.ask(transport)

    assert provider.keys == ["paid"] * 3


@in_every_way
def test_labels_and_places_both_count(way: Way, clock: FakeClock) -> None:
    keys = [
        Credential(f"planted-{name}-0123456789", hosts=[host], labels=[tier])
        for name, host, tier in [("a", HOST, "free"), ("b", "other.example.com", "paid")]
    ]
    pool, provider = CredentialCoordinator(keys, clock=clock, debug=True), Provider()
    transport = way.transport(pool, provider, labels="paid")

    with pytest.raises(NoUsableCredential):
        way.ask(transport)
    with pytest.raises(ForeignHost):
        way.ask(transport, "https://third.example.com/")

    assert provider.seen == []


@in_every_way
def test_calls_are_made_in_the_name_that_was_told(way: Way, clock: FakeClock) -> None:
    pool = pool_of(clock, "one")
    holders: list[str | None] = []

    def look(_: Any) -> Says:
        holders.extend(row.reserved_by for row in pool.snapshot())
        return WELL

    for arguments in ({}, {"requester": "nightly"}):
        way.ask(way.transport(pool, Provider(look), **arguments))

    assert holders == ["http", "nightly"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"affinity": ""}, "affinity"),
        ({"affinity": 5}, "affinity"),
        ({"labels": 5}, "labels"),
        ({"labels": [""]}, "labels"),
        ({"priority": "high"}, "priority"),
        ({"priority": 0.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"auth": ""}, "auth"),
        ({"auth": "-"}, "auth"),
        ({"auth": "x api key"}, "auth"),
        ({"auth": "x-api-key: a"}, "auth"),
        ({"auth": "x-käy"}, "auth"),
        ({"auth": 5}, "auth"),
        ({"auth": "host"}, "auth"),
        ({"auth": "Host"}, "auth"),
        ({"auth": "accept-encoding"}, "auth"),
        ({"auth": "connection"}, "auth"),
        ({"auth": "content-length"}, "auth"),
        ({"auth": "Content-Type"}, "auth"),
        ({"auth": "cookie"}, "auth"),
        ({"auth": "transfer-encoding"}, "auth"),
        ({"max_wait": -1}, "max_wait"),
        ({"max_wait": float("nan")}, "max_wait"),
        ({"max_wait": "5"}, "max_wait"),
        ({"max_wait": True}, "max_wait"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(arguments: dict[str, Any], named: str, clock: FakeClock) -> None:
    pool = pool_of(clock, "one")

    for make in (pool.transport, pool.async_transport):
        with pytest.raises(ValueError, match=f"^{named} must "):
            make(**arguments)
