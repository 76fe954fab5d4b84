"""The forecast says what a run in virtual time then shows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, Limit
from agentos.pool.core.forecast import CapacityForecast, forecast_completion
from agentos.simulator import Latency, ProviderPlan, VirtualRun, Work, equal_keys, forecast
from agentos.simulator.virtual import build_key_specs
from agentos.testing import FakeClock

from ..background_threads import Background


def pool_of(plan: ProviderPlan, slots: int = 64) -> CredentialCoordinator:
    quotas = {quota.name: quota for quota in plan.quotas}
    keys = [
        Credential(key.secret, name=key.name, quota=key.quota, slots=slots, rpm=quotas[key.quota].rpm)
        for key in plan.keys
    ]
    return CredentialCoordinator(keys, clock=FakeClock())


@pytest.mark.parametrize("seed", range(6))
def test_it_agrees_with_a_run_in_virtual_time(seed: int) -> None:
    luck = random.Random(seed)
    rpm, keys, parallel = luck.uniform(60, 600), luck.randint(1, 6), luck.choice([20, 100, 400])
    duration = luck.uniform(0.5, 4.0)
    plan = equal_keys(keys, rpm=rpm, latency=Latency(median=duration, sigma=0.0), seed=seed)
    count = luck.randint(500, 3_000)
    run = VirtualRun(plan, [Work()] * count, specs=build_key_specs(plan, slots=64, known=True), parallel=parallel)

    seen = run.run()

    said = forecast(pool_of(plan), count, duration=duration, parallel=parallel)
    assert said.seconds == pytest.approx(seen.seconds, rel=0.03, abs=duration)


def test_it_names_the_limit_that_binds_and_what_would_move_it() -> None:
    pool = CredentialCoordinator([Credential("not-a-secret", name="a", slots=50, rpm=60)], clock=FakeClock())

    said = pool.forecast(600, duration=1.0)

    assert said.seconds == pytest.approx(541, abs=2)
    assert said.binding == "60 requests a minute of quota a"
    assert [move.what for move in said.moves] == ["another credential in a quota of its own, like a"]
    assert said.moves[0].seconds == pytest.approx(241, abs=2)
    assert str(said).splitlines()[0] == "done in about 9 min; held up by 60 requests a minute of quota a"


def test_slots_bind_where_there_is_no_limit() -> None:
    pool = CredentialCoordinator([Credential("not-a-secret", name="a", slots=2)], clock=FakeClock())

    said = pool.forecast(100, duration=3.0)

    assert said.seconds == pytest.approx(150, abs=3)
    assert said.binding == "2 slots of one credential"
    assert "twice the slots" in [move.what for move in said.moves]


def test_parallelism_binds_where_the_pool_would_bear_more() -> None:
    pool = CredentialCoordinator([Credential("not-a-secret", name="a", slots=50)], clock=FakeClock())

    said = pool.forecast(100, duration=3.0, parallel=4)

    assert said.binding == "parallelism of 4"
    assert said.moves[0].what == "parallelism of 8"


def test_a_parked_quota_counts_from_when_it_is_open() -> None:
    pool = CredentialCoordinator([Credential("not-a-secret", name="a", slots=50, rpm=60)], clock=FakeClock())
    pool.acquire().rate_limited(3_600)

    said = pool.forecast(60, duration=1.0)

    assert said.seconds == pytest.approx(3_601, abs=2)
    assert "quota a, if it were open now" in [move.what for move in said.moves]


def test_days_are_reckoned_with() -> None:
    clock = FakeClock()
    limit = Limit("requests", 100, per="day")
    pool = CredentialCoordinator([Credential("not-a-secret", name="a", slots=10, limits=[limit])], clock=clock)

    said = pool.forecast(250, duration=1.0)

    assert 86_400 < said.seconds <= 2 * 86_400 + 1
    assert said.binding == "100 requests a day of quota a"


def test_a_reservation_above_what_is_used_is_pointed_out() -> None:
    pool = CredentialCoordinator([Credential("not-a-secret", name="a", slots=10, tpm=60_000)], clock=FakeClock())
    for _ in range(8):
        with pool.lease(cost={"tokens": 3_000}) as lease:
            lease.settle(tokens=1_000)

    said = pool.forecast(1_000, {"tokens": 3_000}, duration=1.0)

    assert any("3.0 times what is used is reserved" in move.what for move in said.moves)


def test_without_a_usable_credential_it_never_ends() -> None:
    pool = CredentialCoordinator([Credential("not-a-secret", name="a")], clock=FakeClock())
    pool.retire("a")

    said = pool.forecast(10)

    assert said.seconds == float("inf")
    assert str(said) == "never: no credential can serve"


def test_nobody_waits_for_the_pool_while_it_reckons(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = CredentialCoordinator([Credential("not-a-secret", name="a", slots=50)], clock=FakeClock())
    served: list[bool] = []

    def reckon(*arguments: Any) -> CapacityForecast:
        call = Background(pool.acquire_nowait)
        call.result()  # raises where it has to wait
        served.append(True)
        return forecast_completion(*arguments)

    monkeypatch.setattr("agentos.pool.runtime.inspection.forecast_completion", reckon)

    said = pool.forecast(100, duration=3.0, parallel=4)

    assert served == [True]
    assert said.binding == "parallelism of 4"


def test_nothing_to_do_takes_no_time() -> None:
    pool = CredentialCoordinator([Credential("not-a-secret", name="a")], clock=FakeClock())

    assert pool.forecast(0).seconds == 0.0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n_items": -1}, "n_items must be a whole number"),
        ({"n_items": 1.5}, "n_items must be a whole number"),
        ({"n_items": 1, "duration": -1.0}, "duration must be a number of seconds"),
        ({"n_items": 1, "parallel": 0}, "parallel must be a whole number"),
        ({"n_items": 1, "cost": {"tokns": 1}}, "unknown dimension"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], complaint: str) -> None:
    pool = CredentialCoordinator([Credential("not-a-secret", name="a")], clock=FakeClock())

    with pytest.raises(ValueError, match=complaint):
        pool.forecast(**arguments)  # type: ignore[arg-type]
