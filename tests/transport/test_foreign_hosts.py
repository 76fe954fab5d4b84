"""A key never reaches a host that its credential does not name: not by a redirect, not by a wrong base URL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentos import ForeignHost
from agentos.simulator import Running, Scripted, Simulator

from .calls import SYNC, Way, every_sdk, every_way, every_whole_way, failure, leases, our_error_in, plan, pool_of
from .sdks import Sdk

REDIRECTS: dict[str, Any] = {"follow_redirects": True}


@pytest.fixture(scope="module")
def foreign() -> Iterator[Running]:
    """A server that takes any key, on an address that no credential names."""
    with Simulator(plan(2), host="127.0.0.2") as server:
        yield server


def target(sdk: Sdk, provider: Running, way: Way) -> str:
    """The path under which *sdk* asks."""
    paths = {
        "openai": "/v1/chat/completions",
        "anthropic": "/v1/messages",
        "mistralai": "/mistral/v1/chat/completions",
        "google-genai": "/v1beta/models/a-model:"
        + ("streamGenerateContent?alt=sse" if way.streamed else "generateContent"),
    }
    return provider.url + paths[sdk.name]


def redirecting(location: str) -> Simulator:
    """A provider whose first answer sends its client elsewhere."""
    return Simulator(plan(1, Scripted(307, call=1, headers={"location": location})))


@every_sdk
@every_way
def test_a_redirect_to_a_foreign_host_is_refused_and_nothing_is_sent_there(
    foreign: Running, sdk: Sdk, way: Way
) -> None:
    foreign.reset()
    with redirecting(target(sdk, foreign, way)) as provider:
        pool = pool_of(provider)
        error = failure(lambda: way.ask(sdk, pool, sdk.url(provider), http=REDIRECTS))
        asked = provider.statistics().total.calls

    refused = our_error_in(error)
    assert isinstance(refused, ForeignHost)
    assert refused.host == foreign.url
    assert refused.credentials == ("key-1",)
    assert (asked, foreign.statistics().total.calls) == (1, 0)
    assert leases(pool) == 0


@every_sdk
@every_whole_way
def test_a_redirect_within_the_named_host_is_followed_with_a_key(sdk: Sdk, way: Way) -> None:
    with Simulator(plan(1)) as there, redirecting(target(sdk, there, way)) as provider:
        pool = pool_of(provider)
        way.ask(sdk, pool, sdk.url(provider), http=REDIRECTS)

        assert there.statistics().total.ok == 1
    assert leases(pool) == 0


@every_sdk
@every_way
def test_a_base_url_that_no_credential_names_is_refused_before_anything_is_sent(
    foreign: Running, sdk: Sdk, way: Way
) -> None:
    foreign.reset()
    pool = pool_of(foreign, hosts=["127.0.0.1"])

    error = failure(lambda: way.ask(sdk, pool, sdk.url(foreign)))

    assert isinstance(our_error_in(error), ForeignHost)
    assert foreign.statistics().total.calls == 0
    assert leases(pool) == 0


@every_sdk
def test_the_same_machine_by_another_name_is_another_host(sdk: Sdk) -> None:
    with Simulator(plan(1)) as provider:
        pool = pool_of(provider, hosts=["127.0.0.1"])
        url = sdk.url(provider).replace("127.0.0.1", "localhost")
        error = failure(lambda: SYNC.ask(sdk, pool, url))

        assert isinstance(our_error_in(error), ForeignHost)
        assert provider.statistics().total.calls == 0


@every_sdk
def test_a_key_of_a_known_provider_does_not_go_to_another_address(sdk: Sdk) -> None:
    with Simulator(plan(1)) as provider:
        pool = pool_of(provider, hosts=[], provider="openai")
        error = failure(lambda: SYNC.ask(sdk, pool, sdk.url(provider)))

        assert isinstance(our_error_in(error), ForeignHost)
        assert provider.statistics().total.calls == 0
