"""A request that is rate-limited repeatedly reserves more, but never becomes infeasible."""

from __future__ import annotations

import pytest

from agentos import Limit
from agentos.pool.core.cost import INPUT, OUTPUT, REQUESTS, TOKENS, request_cost
from agentos.pool.core.feasibility import why_infeasible
from agentos.pool.core.records import KeySpec, LeaseRequest
from agentos.pool.core.reservations import with_margin
from agentos.pool.core.states import Life, TicketState
from agentos.providers.signal import Event, Reading

from .signals_for_pool import ask, line_up, ok, pool_of, said, take

TOLD = ask(tokens=100)


def reserved(wanted: LeaseRequest, times: int, *specs: KeySpec | str) -> float | None:
    """The tokens that are reserved after so many limits in a row."""
    return with_margin(wanted, times, pool_of(*specs).keys.values()).cost[TOKENS]


def limited_to(tokens: float, name: str = "a", **facts: object) -> KeySpec:
    return KeySpec(name, limits=(Limit("tokens", tokens, **facts),))  # type: ignore[arg-type]


@pytest.mark.parametrize(("times", "tokens"), [(0, 100.0), (1, 130.0), (2, 169.0), (3, 219.7)])
def test_each_limit_in_a_row_reserves_three_tenths_more(times: int, tokens: float) -> None:
    assert reserved(TOLD, times, limited_to(10_000)) == pytest.approx(tokens)


def test_after_eight_it_stays_as_it_is() -> None:
    eight, nineteen = (reserved(TOLD, times, limited_to(10_000)) for times in (8, 19))

    assert eight == nineteen == pytest.approx(100 * 1.3**8)


def test_never_more_than_fits() -> None:
    assert reserved(TOLD, 8, limited_to(200)) == 200.0


def test_never_less_than_was_declared() -> None:
    assert reserved(TOLD, 3, limited_to(50)) == 100.0


def test_the_widest_of_the_credentials_is_what_fits() -> None:
    assert reserved(TOLD, 8, limited_to(150, "a"), limited_to(300, "b")) == 300.0
    assert reserved(TOLD, 8, limited_to(150, "a"), "b") == 150.0


def test_nothing_more_is_reserved_where_no_limit_on_tokens_is_known() -> None:
    assert reserved(TOLD, 8, "a") == 100.0


def test_of_the_limits_of_one_credential_the_narrowest_is_what_fits() -> None:
    spec = KeySpec("a", limits=(Limit("tokens", 200), Limit("tokens", 150, per=3600, window="sliding")))

    assert reserved(TOLD, 8, spec) == 150.0


def test_credentials_that_cannot_serve_do_not_count() -> None:
    pool = pool_of(limited_to(150, "a"), limited_to(300, "b"), limited_to(400, "c"))
    pool.keys["b"].life = Life.DEAD
    pool.keys["c"].barred["large"] = "404"

    found = with_margin(ask(tokens=100, model="large"), 8, pool.keys.values())

    assert found.cost[TOKENS] == 150.0


def test_the_cost_is_unchanged_if_no_key_can_serve_it() -> None:
    assert with_margin(TOLD, 8, []).cost == TOLD.cost


def test_a_limit_of_another_model_does_not_count() -> None:
    wanted = ask(tokens=100, model="small")

    assert reserved(wanted, 8, limited_to(150, model="large")) == 100.0
    assert reserved(wanted, 8, limited_to(150, model="small")) == 150.0


def test_a_limit_that_was_told_by_the_provider_counts() -> None:
    pool = pool_of("a")
    grant = take(pool)
    pool.report(grant, ok(Reading("tokens", 120.0, 120.0, window=60.0)), 0.0)

    assert with_margin(TOLD, 8, pool.keys.values()).cost[TOKENS] == 120.0


def test_each_dimension_that_was_told_grows_and_no_other() -> None:
    wanted = LeaseRequest(request_cost({"input_tokens": 100}))
    pool = pool_of(KeySpec("a", limits=(Limit("input_tokens", 110), Limit("output_tokens", 1000))))

    cost = with_margin(wanted, 1, pool.keys.values()).cost

    assert cost[INPUT] == pytest.approx(110.0)
    assert (cost[TOKENS], cost[OUTPUT]) == (None, None)
    assert cost[REQUESTS] == 1.0


@pytest.mark.parametrize(
    ("cost", "one", "other"),
    [
        (
            {"input_tokens": 100, "output_tokens": 10},
            (Limit("input_tokens", 110), Limit("output_tokens", 1000)),
            (Limit("input_tokens", 1000), Limit("output_tokens", 12)),
        ),
        ({"input_tokens": 100, "output_tokens": 10}, (Limit("tokens", 120),), (Limit("input_tokens", 120),)),
    ],
)
def test_several_dimensions_fit_one_credential_together(
    cost: dict[str, float], one: tuple[Limit, ...], other: tuple[Limit, ...]
) -> None:
    pool = pool_of(KeySpec("a", limits=one), KeySpec("b", limits=other))
    wanted = LeaseRequest(request_cost(cost))
    keys = pool.keys.values()
    assert why_infeasible(keys, wanted, 0) is None

    assert why_infeasible(keys, with_margin(wanted, 8, keys), 0) is None


def test_all_that_was_told_grows_by_one_factor() -> None:
    limits = (Limit("input_tokens", 1000), Limit("output_tokens", 12))
    wanted = LeaseRequest(request_cost({"input_tokens": 100, "output_tokens": 10}))

    cost = with_margin(wanted, 8, pool_of(KeySpec("a", limits=limits)).keys.values()).cost

    assert cost == pytest.approx((1.0, 132.0, 120.0, 12.0))


def test_of_several_dimensions_the_credential_that_carries_most_of_all_together_is_what_fits() -> None:
    narrow = KeySpec("a", limits=(Limit("input_tokens", 1000), Limit("output_tokens", 12)))
    wide = KeySpec("b", limits=(Limit("input_tokens", 150), Limit("output_tokens", 20)))
    wanted = LeaseRequest(request_cost({"input_tokens": 100, "output_tokens": 10}))

    cost = with_margin(wanted, 8, pool_of(narrow, wide).keys.values()).cost

    assert (cost[INPUT], cost[OUTPUT]) == pytest.approx((150.0, 15.0))


@pytest.mark.parametrize(("told", "largest"), [(100, 110), (2812, 6360), (1363, 5465)])
def test_what_just_fits_is_not_rounded_up_to_what_never_does(told: float, largest: float) -> None:
    keys = pool_of(KeySpec("a", limits=(Limit("input_tokens", largest),))).keys.values()

    assert why_infeasible(keys, with_margin(LeaseRequest(request_cost({"input_tokens": told})), 8, keys), 0) is None


@pytest.mark.parametrize("part", ["input_tokens", "output_tokens"])
def test_a_part_of_the_tokens_fits_the_limit_of_all_tokens(part: str) -> None:
    keys = pool_of(limited_to(200)).keys.values()
    wanted = LeaseRequest(request_cost({part: 100}))
    assert why_infeasible(keys, wanted, 0) is None

    assert why_infeasible(keys, with_margin(wanted, 8, keys), 0) is None


def test_the_rest_of_the_request_stays_what_it_is() -> None:
    labels = frozenset({("tier", "paid")})
    wanted = LeaseRequest(request_cost({"tokens": 100}), "large", "talk", 3, labels)

    found = with_margin(wanted, 2, pool_of(limited_to(1000)).keys.values())

    assert (found.model, found.affinity, found.priority, found.labels) == ("large", "talk", 3, labels)
    assert wanted.cost[TOKENS] == 100.0


def test_it_waits_for_what_it_reserves_and_does_not_become_hopeless() -> None:
    pool = pool_of(limited_to(200))
    more = with_margin(TOLD, 8, pool.keys.values())
    assert why_infeasible(pool.keys.values(), more, 0) is None
    pool.release(take(pool, ask(tokens=50)), 0.0)

    waiting = line_up(pool, more)
    assert (waiting.state, pool.next_at) == (TicketState.WAITING, 15.0)  # all of the 200 has to be there
    pool.tick(15.0)

    assert waiting.state is TicketState.GRANTED


def test_a_quota_without_money_does_not_count() -> None:
    pool = pool_of(limited_to(150, "a"), limited_to(300, "b"))
    grants = {grant.key.name: grant for grant in (take(pool), take(pool))}
    pool.report(grants["b"], said(Event.MONEY_GONE), 0.0)

    assert with_margin(TOLD, 8, pool.keys.values()).cost[TOKENS] == 150.0
