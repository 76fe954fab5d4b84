"""What a call does when the provider says no: on with another key, or up to the caller as it came."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from agentos import NoUsableCredential
from agentos.providers import Event
from agentos.simulator import KeyPlan, Latency, ProviderPlan, QuotaPlan, Running, Scripted, Simulator, simulated_key

from .calls import (
    ASYNC,
    SYNC,
    WAYS,
    Way,
    async_wire,
    every_sdk,
    every_way,
    every_whole_way,
    failure,
    keeping,
    leases,
    our_error_in,
    plan,
    pool_of,
    wire,
)
from .sdks import Sdk, httpx2

ALWAYS = 1e6  # seconds

# -- another key ---------------------------------------------------------------------------------------------------


def bad_first_key(**fault: Any) -> ProviderPlan:
    """Two keys, of which the first has a fault."""
    quota = {name: fault.pop(name) for name in ("spent", "daily_requests") if name in fault}
    quotas = (QuotaPlan("quota-1", **quota), QuotaPlan("quota-2"))
    keys = (KeyPlan(simulated_key("key-1"), "quota-1", **fault), KeyPlan(simulated_key("key-2"), "quota-2"))
    return ProviderPlan(quotas, keys, latency=Latency(0.0, 0.0), rejection_latency=0.0)


def no_such_model(status: int) -> ProviderPlan:
    """Two keys, of which the first may not use the model."""
    body = {
        "type": "error",  # Anthropic's words, and OpenAI's beside them
        "error": {
            "code": "model_not_found",
            "type": "not_found_error" if status == 404 else "permission_error",
            "status": "NOT_FOUND" if status == 404 else "PERMISSION_DENIED",
            "message": "The model `a-model` does not exist or you do not have access to it.",
        },
    }
    return plan(2, Scripted(status, at=0.0, until=ALWAYS, key="key-1", body=body))


REFUSALS = {
    "dead key": (bad_first_key(dead=True), Event.KEY_DEAD),
    "money gone": (bad_first_key(spent=True), Event.MONEY_GONE),
    "model forbidden": (no_such_model(403), Event.NOT_ENTITLED),
    "no such model": (no_such_model(404), Event.NOT_ENTITLED),
    "limited": (
        plan(2, Scripted(429, at=0.0, until=ALWAYS, key="key-1", headers={"retry-after": "30"})),
        Event.LIMITED,
    ),
}


@every_sdk
@pytest.mark.parametrize(
    ("refusal", "way"),
    [*((refusal, way) for refusal in REFUSALS for way in (SYNC, ASYNC)), *(("limited", way) for way in WAYS[2:])],
    ids=str,
)
def test_a_call_whose_key_is_refused_goes_on_with_another(sdk: Sdk, way: Way, refusal: str) -> None:
    provided, event = REFUSALS[refusal]
    seen: list[Any] = []

    with Simulator(provided) as provider:
        pool = pool_of(provider)
        way.ask(sdk, pool, sdk.url(provider), http=keeping(seen, way))
        tallies = provider.statistics().keys

    record = seen[0].extensions["agentos"]
    assert [(each.credential, each.event) for each in record.refusals] == [("key-1", event)]
    assert record.credential == "key-2"
    assert (tallies["key-1"].calls, tallies["key-2"].ok) == (1, 1)
    assert leases(pool) == 0


@every_sdk
@every_whole_way
def test_when_all_keys_are_dead_the_providers_refusal_goes_up_and_the_next_call_is_not_sent(sdk: Sdk, way: Way) -> None:
    dead = tuple(KeyPlan(simulated_key(f"key-{number}"), "quota", dead=True) for number in (1, 2))
    provided = ProviderPlan((QuotaPlan("quota"),), dead, latency=Latency(0.0, 0.0), rejection_latency=0.0)
    with Simulator(provided) as provider:
        pool = pool_of(provider)
        first = failure(lambda: way.ask(sdk, pool, sdk.url(provider)))
        then = failure(lambda: way.ask(sdk, pool, sdk.url(provider)))
        calls = provider.statistics().total.calls

    assert isinstance(first, sdk.key_refused)
    assert our_error_in(first) is None
    assert isinstance(our_error_in(then), NoUsableCredential)
    assert calls == 2
    assert leases(pool) == 0


# -- up, as it came ------------------------------------------------------------------------------------------------


def bare(way: Way, sdk: Sdk, provider: Running) -> Exception:
    """What the SDK raises with one key and no pool."""
    key, url = provider.keys[0], sdk.url(provider)

    async def ask() -> Any:
        async with httpx2.AsyncClient(transport=async_wire()) as http:
            return await way.ask_with_async(sdk, sdk.async_client(http, url, key=key))

    def ask_here() -> Any:
        if way.asynchronous:
            return asyncio.run(ask())
        with httpx2.Client(transport=wire()) as http:
            return way.ask_with(sdk, sdk.client(http, url, key=key))

    return failure(ask_here)


@every_sdk
@every_way
@pytest.mark.parametrize("mishap", [400, 503, "drop", "cut"])
def test_what_another_key_would_not_cure_goes_up_as_the_bare_sdk_raises_it(sdk: Sdk, way: Way, mishap: Any) -> None:
    with Simulator(plan(2, Scripted(mishap, at=0.0, until=ALWAYS))) as provider:
        expected = bare(way, sdk, provider)
        provider.reset()
        pool = pool_of(provider)
        error = failure(lambda: way.ask(sdk, pool, sdk.url(provider)))
        calls = provider.statistics().total.calls

    assert type(error) is type(expected)
    assert without_ids(error) == without_ids(expected)
    assert calls == 1
    assert leases(pool) == 0


def without_ids(error: Exception) -> str:
    return re.sub(r"req_\w+", "req_...", str(error))


@every_sdk
def test_errors_of_the_provider_are_the_sdks_own(sdk: Sdk) -> None:
    script = [Scripted(status, call=call) for call, status in enumerate((500, "drop", 429), 1)]  # type: ignore[arg-type]
    with Simulator(plan(1, *script)) as provider:
        pool = pool_of(provider)
        errors = [failure(lambda: SYNC.ask(sdk, pool, sdk.url(provider), max_wait=0)) for _ in script]

    assert [type(error) for error in errors[::2]] == [sdk.server_error, sdk.limited]
    assert isinstance(errors[1], sdk.no_answer)
    assert [sdk.status(error) for error in errors[::2]] == [500, 429]
