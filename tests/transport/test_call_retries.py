"""``pool.transport(retries=N)``: calls that are repeated after server errors and connections that were not made."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from agentos.testing import FakeClock

from ..background_threads import Background
from .fakes import WELL, Provider, Says, Way, in_every_way, leased, pool_of
from .test_call import an_item

BUSY = Says(503, {"error": {"message": "later"}})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def ask(way: Way, clock: FakeClock, provider: Provider, *, in_item: bool = False, **options: Any) -> Any:
    """The answer, or the error, to one call; time passes whenever it waits."""
    pool = pool_of(clock, "one")
    transport = way.transport(pool, provider, **options)

    def work() -> Any:
        with an_item(pool) if in_item else nullcontext():
            try:
                return way.ask(transport)
            except Exception as error:
                return error

    call = Background(work)
    while call.running:
        try:
            clock.wait_for_sleepers(1, timeout=0.02)
        except TimeoutError:
            continue
        clock.advance(0.5)
    assert leased(pool) == []
    return call.result()


@in_every_way
def test_server_errors_are_passed_on_unless_retries_are_asked_for(way: Way, clock: FakeClock) -> None:
    provider = Provider(BUSY, WELL)

    assert ask(way, clock, provider).status_code == 503
    assert len(provider.seen) == 1


@in_every_way
def test_a_call_is_repeated_after_server_errors_as_often_as_was_asked(way: Way, clock: FakeClock) -> None:
    provider = Provider(BUSY, Says(500, b"broken"), WELL)

    answer = ask(way, clock, provider, retries=2)

    assert answer.status_code == 200
    assert [refusal.status for refusal in answer.extensions["agentos"].refusals] == [503, 500]


@in_every_way
def test_after_the_last_retry_the_error_is_passed_on(way: Way, clock: FakeClock) -> None:
    provider = Provider(BUSY)

    assert ask(way, clock, provider, retries=2).status_code == 503
    assert len(provider.seen) == 3


@in_every_way
def test_the_delay_that_the_provider_asks_for_is_kept(way: Way, clock: FakeClock) -> None:
    began = clock.now()

    ask(way, clock, Provider(Says(503, b"later", {"retry-after": "7"}), WELL), retries=1)

    assert clock.now() - began >= 7


@in_every_way
@pytest.mark.parametrize("kind", ["ConnectError", "ConnectTimeout"])
def test_a_connection_that_was_not_made_is_tried_again(way: Way, clock: FakeClock, kind: str) -> None:
    refused = getattr(way.library, kind)("refused")
    provider = Provider(refused, refused, WELL)

    assert ask(way, clock, provider, retries=2).status_code == 200
    assert ask(way, clock, Provider(refused), retries=1) is refused


@in_every_way
def test_a_request_that_may_have_arrived_is_not_sent_again(way: Way, clock: FakeClock) -> None:
    broken = way.library.ReadError("the connection broke")
    provider = Provider(broken, WELL)

    assert ask(way, clock, provider, retries=3) is broken
    assert len(provider.seen) == 1


@in_every_way
def test_inside_an_item_nothing_is_retried_because_the_run_does(way: Way, clock: FakeClock) -> None:
    provider = Provider(BUSY, WELL)

    assert ask(way, clock, provider, in_item=True, retries=3).status_code == 503
    assert len(provider.seen) == 1


@pytest.mark.parametrize("retries", [-1, 1.5, True, "2", 1000])
def test_a_number_of_retries_that_is_none_is_refused(clock: FakeClock, retries: Any) -> None:
    with pytest.raises(ValueError, match="retries must be a whole number from 0 to 100"):
        pool_of(clock, "one").transport(retries=retries)
