"""An SDK that asks again by itself beside the pool is warned of, once."""

from __future__ import annotations

import pytest

from agentos.simulator import Scripted, Simulator

from .calls import Way, every_sdk, every_whole_way, failure, plan, pool_of
from .sdks import Sdk

SOON = {"retry-after-ms": "1"}  # for the clients that would rest half a second


@every_sdk
@every_whole_way
def test_an_sdk_with_its_own_retries_on_is_warned_of_once(sdk: Sdk, way: Way, caplog: pytest.LogCaptureFixture) -> None:
    script = [Scripted(500, call=call, headers=SOON) for call in (1, 2)]
    with Simulator(plan(1, *script)) as provider:
        way.ask(sdk, pool_of(provider), sdk.url(provider), retries=2)

        assert provider.statistics().total.calls == 3
    assert warnings_in(caplog) == 1


@every_sdk
@every_whole_way
def test_an_sdk_without_retries_of_its_own_is_not_warned_of(
    sdk: Sdk, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    with Simulator(plan(2, Scripted(429, call=1), Scripted(500, call=3))) as provider:
        pool = pool_of(provider)
        way.ask(sdk, pool, sdk.url(provider))
        failure(lambda: way.ask(sdk, pool, sdk.url(provider)))

        assert provider.statistics().total.calls == 3
    assert warnings_in(caplog) == 0


def warnings_in(caplog: pytest.LogCaptureFixture) -> int:
    return sum(
        record.name == "agentos"
        and record.levelname == "WARNING"
        and "retries failed calls by itself" in record.getMessage()
        for record in caplog.records
    )
