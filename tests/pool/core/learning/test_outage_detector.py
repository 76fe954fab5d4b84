"""Outages of the network or a provider: when they are detected, and how long the pause is."""

from __future__ import annotations

import pytest

from agentos.pool.core.learning.outage_detector import OutageDetector


@pytest.fixture
def weather() -> OutageDetector:
    return OutageDetector()


def busy(weather: OutageDetector, times: int, now: float = 0.0, provider: str = "p") -> list[float | None]:
    return [weather.on_busy(provider, None, now) for _ in range(times)]


# -- a provider that is overloaded --------------------------------------------------------------------------------


def test_one_or_two_busy_answers_say_nothing(weather: OutageDetector) -> None:
    assert busy(weather, 2) == [None, None]


def test_the_third_failure_in_a_row_pauses_for_a_second(weather: OutageDetector) -> None:
    assert busy(weather, 3) == [None, None, 1.0]


def test_those_that_were_under_way_do_not_make_it_longer(weather: OutageDetector) -> None:
    busy(weather, 3)

    assert busy(weather, 5, now=0.5) == [None] * 5
    assert [weather.is_paused("p", now) for now in (0.0, 0.5, 1.0)] == [True, True, False]


def test_pauses_double_up_to_a_minute(weather: OutageDetector) -> None:
    busy(weather, 2)
    now, rests = 0.0, []
    for _ in range(9):
        rest = weather.on_busy("p", None, now)
        assert rest is not None
        rests.append(rest)
        now += rest

    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_an_answer_ends_the_doubling(weather: OutageDetector) -> None:
    busy(weather, 3)
    weather.on_busy("p", None, 1.0)

    weather.on_answer("p")

    assert weather.on_busy("p", None, 10.0) == 1.0


def test_busy_answers_that_are_not_most_of_the_last_ten_say_nothing(weather: OutageDetector) -> None:
    weather.on_busy("p", None, 0.0)
    for _ in range(7):
        weather.on_answer("p")

    assert busy(weather, 6) == [None] * 5 + [1.0]  # half of the last ten is not most of them


def test_a_provider_that_says_how_long_is_believed_up_to_a_minute(weather: OutageDetector) -> None:
    busy(weather, 2)

    assert weather.on_busy("p", 20.0, 0.0) == 20.0
    assert weather.on_busy("p", 3600.0, 100.0) == 60.0
    assert weather.on_busy("p", 0.0, 200.0) == 4.0


def test_providers_have_nothing_to_do_with_each_other(weather: OutageDetector) -> None:
    busy(weather, 2, provider="p")

    assert busy(weather, 2, provider="q") == [None, None]


def test_it_is_calm_again_once_the_last_ten_were_went_well(weather: OutageDetector) -> None:
    calm = [weather.has_no_failures]
    weather.on_busy("p", None, 0.0)
    for _ in range(11):
        calm.append(weather.has_no_failures)
        weather.on_answer("p")

    assert calm == [True] + [False] * 10 + [True]


def test_answers_of_one_that_was_never_busy_are_not_counted(weather: OutageDetector) -> None:
    weather.on_answer("p")

    assert weather.has_no_failures


def test_answers_of_another_provider_do_not_end_the_doubling(weather: OutageDetector) -> None:
    busy(weather, 3, provider="p")

    weather.on_answer("q")

    assert weather.on_busy("p", None, 1.0) == 2.0


def test_a_provider_is_paused_though_another_already_is(weather: OutageDetector) -> None:
    busy(weather, 2, provider="p")
    weather.on_busy("p", 60.0, 0.0)

    assert busy(weather, 3, now=1.0, provider="q") == [None, None, 1.0]
    assert [weather.is_paused(provider, 1.5) for provider in ("p", "q", "r", None)] == [True, True, False, False]


def test_an_answer_of_an_unknown_provider_counts_for_each_busy_one(weather: OutageDetector) -> None:
    for provider in "pq":
        busy(weather, 3, provider=provider)
        weather.on_busy(provider, None, 1.0)

    weather.on_answer(None)

    assert [weather.on_busy(provider, None, 10.0) for provider in "pq"] == [1.0, 1.0]


def test_an_answer_does_not_end_a_pause(weather: OutageDetector) -> None:
    """It may be that of a call that began long before."""
    busy(weather, 3)

    weather.on_answer("p")

    assert weather.is_paused("p", 0.5)
    assert weather.on_busy("p", None, 0.5) is None


# -- several that fail alike --------------------------------------------------------------------------------------


def unreachable(weather: OutageDetector, quotas: str, now: float = 0.0, among: int = 9) -> list[float | None]:
    return [weather.on_unreachable(quota, among, now) for quota in quotas]


def refused(weather: OutageDetector, quotas: str, now: float = 0.0, kind: str = "refused 401") -> list[bool]:
    return [weather.has_similar_failures(kind, quota, 3, now) for quota in quotas]


def test_three_unrelated_quotas_that_fail_alike_are_no_quotas_fault(weather: OutageDetector) -> None:
    assert unreachable(weather, "abc") == [None, None, 1.0]
    assert refused(weather, "abc") == [False, False, True]


def test_one_quota_that_fails_again_and_again_is_its_own_fault(weather: OutageDetector) -> None:
    assert unreachable(weather, "aaaaaa") == [None] * 6
    assert unreachable(weather, "b") == [None]
    assert unreachable(weather, "c") == [1.0]


def test_without_a_network_everything_is_paused_but_no_provider(weather: OutageDetector) -> None:
    unreachable(weather, "abc")

    assert [weather.is_paused(None, now) for now in (0.0, 0.5, 1.0)] == [True, True, False]
    assert not weather.is_paused("p", 0.5)
    assert unreachable(weather, "d", now=0.5) == [None]  # it was under way


def test_similar_refusals_alone_pause_nothing(weather: OutageDetector) -> None:
    refused(weather, "abc")

    assert not weather.is_paused(None, 0.0)
    assert refused(weather, "d") == [True]  # whatever was done about the third


@pytest.mark.parametrize(("among", "quotas"), [(1, "aaa"), (2, "aab"), (2, "aba")])
def test_where_there_are_fewer_than_three_all_of_them_have_to_fail(
    weather: OutageDetector, among: int, quotas: str
) -> None:
    assert unreachable(weather, quotas, among=among) == [None, None, 1.0]


def test_failures_of_another_kind_do_not_count(weather: OutageDetector) -> None:
    refused(weather, "ab", kind="refused 401")

    assert refused(weather, "c", kind="refused 403") == [False]
    assert unreachable(weather, "d") == [None]


def test_failures_that_lie_more_than_ten_seconds_apart_do_not_belong_together(weather: OutageDetector) -> None:
    refused(weather, "a", now=0.0)
    refused(weather, "b", now=5.0)

    assert refused(weather, "c", now=10.5) == [False]
    assert refused(weather, "d", now=15.0) == [True]


def test_an_answer_of_anybody_means_that_the_network_is_there(weather: OutageDetector) -> None:
    unreachable(weather, "ab")

    weather.on_answer("p")

    assert unreachable(weather, "c") == [None]


def test_an_answer_of_anybody_ends_the_doubling_of_the_network(weather: OutageDetector) -> None:
    unreachable(weather, "abc")
    assert unreachable(weather, "d", now=1.0) == [2.0]

    weather.on_answer("p")

    assert unreachable(weather, "abc", now=4.0) == [None, None, 1.0]
    assert not weather.has_no_failures


def test_pauses_of_the_network_double_too(weather: OutageDetector) -> None:
    unreachable(weather, "ab")
    now, rests = 0.0, []
    for _ in range(4):
        rest = weather.on_unreachable("c", 9, now)
        rests.append(rest)
        now += rest or 0.0

    assert rests[:3] == [1.0, 2.0, 4.0]


def test_a_flood_of_failures_is_remembered_in_part(weather: OutageDetector) -> None:
    for n in range(10_000):
        weather.has_similar_failures(f"refused {n % 3}", f"quota {n}", 9, n / 1000)

    assert all(len(seen) <= 64 for seen in weather._failures.values())
