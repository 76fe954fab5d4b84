"""The estimated end of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from agentos import CredentialCoordinator, CredentialState
from agentos.runs.display.eta import Eta, PoolForecast
from agentos.runs.progress import Progress
from agentos.runs.results import ProgressStats, WorkflowResult
from agentos.testing import FakeClock

NOW = 1_700_000_000.0


def stats(completed: int = 50, total: int | None = 100, *, elapsed: float = 100.0, cached: int = 0) -> ProgressStats:
    return ProgressStats(
        total=total, completed=completed, success_count=completed, cached=cached, start_time=0.0, end_time=elapsed
    )


def test_without_a_forecast_the_pace_so_far_goes_on() -> None:
    assert Eta().seconds_left(stats(50, 100, elapsed=100.0), NOW) == pytest.approx(100.0)


def test_what_came_from_an_earlier_run_does_not_make_the_pace() -> None:
    assert Eta().seconds_left(stats(60, 100, elapsed=100.0, cached=50), NOW) == pytest.approx(400.0)


@pytest.mark.parametrize(
    "early", [stats(2, elapsed=60.0), stats(12, elapsed=60.0, cached=10), stats(50, elapsed=2.9), stats(50, None)]
)
def test_nothing_is_said_before_three_items_and_three_seconds_or_without_an_end(early: ProgressStats) -> None:
    assert Eta(lambda count: 10.0).seconds_left(early, NOW) is None


def test_a_forecast_goes_before_the_pace() -> None:
    assert Eta(lambda count: 7.0 * count).seconds_left(stats(50, 100), NOW) == pytest.approx(350.0)


def test_a_forecast_that_cannot_tell_leaves_it_to_the_pace() -> None:
    assert Eta(lambda count: None).seconds_left(stats(50, 100), NOW) == pytest.approx(100.0)


def test_a_forecast_of_never_is_no_time_at_all() -> None:
    assert Eta(lambda count: math.inf).seconds_left(stats(), NOW) is None


def test_a_forecast_that_fails_leaves_it_to_the_pace() -> None:
    def fails(count: int) -> float:
        raise RuntimeError

    assert Eta(fails).seconds_left(stats(50, 100), NOW) == pytest.approx(100.0)


def test_between_two_looks_time_runs_down() -> None:
    eta = Eta(lambda count: 60.0)

    first = eta.seconds_left(stats(), NOW)
    later = eta.seconds_left(stats(), NOW + 0.5)

    assert first == pytest.approx(60.0)
    assert later == pytest.approx(59.5)


def test_a_change_of_the_estimate_comes_in_gradually_and_completely() -> None:
    now, ends_at = [NOW], [NOW + 100.0]
    eta = Eta(lambda count: ends_at[0] - now[0])
    eta.seconds_left(stats(), NOW)
    ends_at[0] = NOW + 700.0

    shown_end = []
    for _ in range(60):
        now[0] += 1.0
        shown_end.append(now[0] + (eta.seconds_left(stats(), now[0]) or 0.0))

    assert shown_end[0] < NOW + 250
    assert shown_end[-1] == pytest.approx(NOW + 700.0, abs=1.0)
    assert shown_end == sorted(shown_end), "it goes one way"


def test_a_costly_forecast_is_asked_for_less_often() -> None:
    asked: list[int] = []
    now = [0.0]

    def forecast(count: int) -> float:
        asked.append(count)
        now[0] += 0.1
        return 60.0

    eta = Eta(forecast, timer=lambda: now[0])
    for quarter in range(80):
        eta.seconds_left(stats(), NOW + quarter / 4)

    assert len(asked) == 2, "a tenth of a second each: every ten seconds"


def test_the_forecast_of_a_pool_knows_when_its_keys_wake() -> None:
    clock = FakeClock()
    names = ["secret-one", "secret-two", "secret-three"]
    pool = CredentialCoordinator(names, clock=clock)
    forecast = PoolForecast(pool, parallel=3)
    assert forecast(100) is None, "nothing has ended yet"
    forecast.note(Progress("item_finished", stats(), "a", WorkflowResult("a", True, duration=1.0)))
    awake = forecast(100)
    for name in names:
        pool.mark_rate_limited(name, 600.0)

    asleep = Eta(forecast).seconds_left(stats(100, 200, elapsed=34.0), NOW)

    assert awake == pytest.approx(34.0, abs=2.0)
    assert asleep == pytest.approx(634.0, abs=5.0)


def test_results_of_an_earlier_run_say_nothing_about_how_long_items_take() -> None:
    forecast = PoolForecast(CredentialCoordinator(["secret-one"]), parallel=3)

    forecast.note(Progress("item_finished", stats(), "a", WorkflowResult("a", True, duration=900.0, cached=True)))
    forecast.note(Progress("item_retried", stats(), "b"))

    assert forecast(10) is None


def story(told: Callable[[float], float], seconds: int) -> list[float]:
    """What is shown each second, when the forecast is *told* of the seconds since the start."""
    now = [0.0]
    eta = Eta(lambda count: told(now[0]))
    shown = []
    for second in range(seconds):
        now[0] = float(second)
        shown.append(eta.seconds_left(stats(), NOW + second) or 0.0)
    return shown


def test_a_forecast_that_proves_too_short_is_stretched_by_as_much() -> None:
    """It takes nine seconds for each one it tells of: limits come that nobody knew of."""
    shown = story(lambda second: 100.0 - second / 9, 60)

    assert shown[0] == pytest.approx(100.0)
    assert shown[-1] == pytest.approx(9 * (100.0 - 59 / 9), rel=0.1)


def test_a_forecast_that_is_right_stays_as_it_is_also_after_a_long_rest_became_known() -> None:
    shown = story(lambda second: 100.0 - second if second < 30 else 700.0 - second, 90)

    assert shown[29] == pytest.approx(71.0, abs=1.0)
    assert shown[-1] == pytest.approx(611.0, abs=5.0)


def test_a_forecast_that_stands_still_is_stretched_but_not_for_ever() -> None:
    assert max(story(lambda second: 10.0, 200)) <= 10.0 / 0.1 + 1


def test_a_short_rest_of_the_keys_does_not_make_all_that_is_to_come_slow() -> None:
    """Thirty items of a second; from the sixth second on all keys rest for eight."""

    def told(second: float) -> float:
        return 30.0 - second if second < 6 else 38.0 - second

    shown = story(told, 36)

    for second in range(15, 36):
        assert shown[second] == pytest.approx(38.0 - second, abs=3.0)


def test_rests_that_come_again_and_again_are_reckoned_with() -> None:
    """Each eleven seconds the forecast falls by eleven and rises by ten: it goes eleven times as slow as was told."""

    def told(second: float) -> float:
        rounds, within = divmod(second, 11)
        return 100.0 - rounds - within

    shown = story(told, 300)

    assert shown[-1] > 4 * told(299.0)


# -- keys that cool down -------------------------------------------------------------------------------------------


def cooling(seconds: float) -> CredentialState:
    return CredentialState("k", state="cooling", rate_limited_until=NOW + seconds)


@pytest.mark.parametrize("forecast", [None, lambda count: 3.0])
def test_the_time_left_is_never_shorter_than_the_cooldown_of_all_keys(forecast: Any) -> None:
    eta = Eta(forecast)
    assert (eta.seconds_left(stats(99, 100, elapsed=99.0), NOW) or 0) <= 3.0

    for second in range(60):
        left = eta.seconds_left(stats(99, 100, elapsed=99.0), NOW + second, [cooling(60.0), cooling(90.0)])
        assert left is not None
        assert left >= 60.0 - second


def test_the_pace_so_far_begins_again_after_the_cooldown() -> None:
    assert Eta().seconds_left(stats(50, 100, elapsed=100.0), NOW, [cooling(60.0)]) == pytest.approx(160.0)


def test_without_a_usable_key_no_time_left_is_known() -> None:
    assert Eta(lambda count: 10.0).seconds_left(stats(), NOW, [CredentialState("k", state="dead")]) is None
