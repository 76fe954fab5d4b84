"""How long a call waits for keys: as long as its own timeout says, or as the transport was told."""

from __future__ import annotations

from typing import Any

from agentos import CredentialCoordinator, NoCredentialAvailable
from agentos.simulator import Running, Scripted, Simulator
from agentos.testing import FakeClock

from ..background_threads import Background
from .calls import SYNC, Way, every_sdk, every_whole_way, failure, leases, our_error_in, plan, pool_of
from .sdks import Sdk

RESTS = 30  # seconds, as its provider says


def limited_once() -> Simulator:
    """A provider with one key, which refuses the first call."""
    return Simulator(plan(1, Scripted(429, call=1, headers={"retry-after": str(RESTS)})))


def failing(
    way: Way, sdk: Sdk, pool: CredentialCoordinator, provider: Running, **options: Any
) -> Background[Exception]:
    """A call under way, for its error."""
    return Background(lambda: failure(lambda: way.ask(sdk, pool, sdk.url(provider), **options)))


@every_sdk
@every_whole_way
def test_a_call_that_only_waited_is_told_when_its_time_is_over(sdk: Sdk, way: Way) -> None:
    clock = FakeClock()
    with Simulator(plan(1)) as provider:
        pool = pool_of(provider, clock)
        with pool.lease() as lease:
            lease.rate_limited(RESTS)
        call = failing(way, sdk, pool, provider, timeout=20.0)
        clock.wait_for_sleepers(1)
        clock.advance(20.0)

        error = our_error_in(call.result())
        assert isinstance(error, NoCredentialAvailable)
        assert (error.waited, error.next_free_in) == (20.0, RESTS - 20.0)
        assert provider.statistics().total.calls == 0


@every_sdk
@every_whole_way
def test_a_call_that_was_refused_and_waited_in_vain_gets_the_providers_answer(sdk: Sdk, way: Way) -> None:
    clock = FakeClock()
    with limited_once() as provider:
        pool = pool_of(provider, clock)
        call = failing(way, sdk, pool, provider, timeout=20.0)
        clock.wait_for_sleepers(1)
        clock.advance(20.0)

        error = call.result()
        assert isinstance(error, sdk.limited)
        assert sdk.status(error) == 429
        assert provider.statistics().total.calls == 1
    assert leases(pool) == 0


@every_sdk
@every_whole_way
def test_a_key_that_rests_for_less_than_the_timeout_is_waited_for(sdk: Sdk, way: Way) -> None:
    clock = FakeClock()
    with limited_once() as provider:
        call = Background(lambda: way.ask(sdk, pool_of(provider, clock), sdk.url(provider), timeout=60.0))
        clock.wait_for_sleepers(1)
        clock.advance(RESTS)

        call.result()
        assert provider.statistics().total.ok == 1


@every_sdk
@every_whole_way
def test_max_wait_overrules_the_timeout(sdk: Sdk, way: Way) -> None:
    clock = FakeClock()
    with limited_once() as provider:
        pool = pool_of(provider, clock)
        call = Background(lambda: way.ask(sdk, pool, sdk.url(provider), timeout=20.0, max_wait=60.0))
        clock.wait_for_sleepers(1)
        clock.advance(25.0)
        clock.wait_for_sleepers(1)
        clock.advance(RESTS - 25.0)

        call.result()
        assert provider.statistics().total.ok == 1


@every_sdk
@every_whole_way
def test_with_no_time_to_wait_the_first_refusal_goes_up(sdk: Sdk, way: Way) -> None:
    with limited_once() as provider:
        error = failure(lambda: way.ask(sdk, pool_of(provider), sdk.url(provider), timeout=20.0, max_wait=0))

        assert isinstance(error, sdk.limited)
        assert provider.statistics().total.calls == 1


@every_sdk
def test_a_real_timeout_of_a_twentieth_of_a_second_ends_the_wait(sdk: Sdk) -> None:
    with Simulator(plan(1)) as provider:
        pool = pool_of(provider)
        with pool.lease() as lease:
            lease.rate_limited(RESTS)

        error = failure(lambda: SYNC.ask(sdk, pool, sdk.url(provider), timeout=0.05))

        assert isinstance(our_error_in(error), NoCredentialAvailable)
        assert provider.statistics().total.calls == 0
