"""The adaptive rate finds the limit of a provider that refills continuously and reports only refusals."""

from __future__ import annotations

import heapq
import json
import math
from dataclasses import dataclass, field

import pytest

from agentos.pool.core.learning.adaptive_rate import AdaptiveRate
from agentos.pool.core.limits.base import FOREVER


class Provider:
    """So many a second, of which so many may be saved up."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self.level, self.at = burst, 0.0

    def admits(self, now: float) -> bool:
        self.level = min(self.burst, self.level + (now - self.at) * self.rate)
        self.at = now
        admitted = self.level >= 1.0
        self.level -= admitted
        return admitted


@dataclass
class Client:
    """Starts whatever the pace lets it, and hears of each refusal when the call is over."""

    provider: Provider
    pace: AdaptiveRate
    now: float = 0.0
    lasts: float = 0.1
    admitted: int = 0
    refused: int = 0
    flying: list[tuple[float, int, tuple[float, float], float, bool]] = field(default_factory=list)

    def work(self, until: float, at_once: int = 8) -> Client:
        while True:
            starts = self.pace.ready_at(1.0, self.now) if len(self.flying) < at_once else FOREVER
            lands = self.flying[0][0] if self.flying else FOREVER
            at = min(starts, lands)
            if at >= until:
                self.now = until
                return self
            self.now = max(self.now, at)
            if lands <= starts:
                self._land()
            else:
                stamp = self.pace.take(1.0, self.now)
                flight = (self.now + self.lasts, int(stamp[1]), stamp, self.now, self.provider.admits(self.now))
                heapq.heappush(self.flying, flight)

    def _land(self) -> None:
        _, _, stamp, started_at, admitted = heapq.heappop(self.flying)
        if admitted:
            self.admitted += 1
        else:
            self.refused += 1
            self.pace.on_refusal(stamp, started_at, self.now)


def client(rate: float, burst: float, **options: float) -> Client:
    """One whose provider has just refused, for the first time."""
    provider = Provider(rate, burst)
    provider.level = 0.0
    return Client(provider, AdaptiveRate(None, 0.0), **options)  # type: ignore[arg-type]


def found(rate: float) -> AdaptiveRate:
    """A pace that has found its rate, with nothing saved up."""
    pace = AdaptiveRate(None, 0.0)
    pace.rate = pace.base = rate
    pace.searching_since = None
    return pace


# -- finding it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "lasts"),
    [(rate, lasts) for rate in (0.1, 0.5, 1.0, 10.0, 100.0) for lasts in (0.05, 2.0) if rate * lasts < 100.0],
)
def test_the_rate_is_found_whatever_it_is_and_however_long_calls_last(rate: float, lasts: float) -> None:
    work = client(rate, burst=max(1.0, 10 * rate), lasts=lasts).work(600.0 / min(rate, 1.0), at_once=2000)

    assert not work.pace.searching
    assert work.pace.rate == pytest.approx(rate, rel=0.15)


@pytest.mark.parametrize("lasts", [2.0, 5.0])
def test_the_rate_is_found_where_many_calls_are_in_flight(lasts: float) -> None:
    work = client(100.0, burst=1000.0, lasts=lasts).work(20.0, at_once=2000)
    admitted, refused = work.admitted, work.refused

    work.work(120.0, at_once=2000)

    assert work.pace.rate == pytest.approx(100.0, rel=0.01)
    assert work.admitted - admitted > 0.98 * 100.0 * 100.0
    assert work.refused - refused < 0.08 * 100.0 * 100.0


@pytest.mark.parametrize("lasts", [2.0, 5.0])
def test_few_are_refused_where_it_is_known_beforehand_how_long_a_refusal_takes(lasts: float) -> None:
    work = client(100.0, burst=1000.0, lasts=lasts)
    work.pace = AdaptiveRate(None, 0.0, starts_a_second=1000.0, lag=lasts)

    work.work(120.0, at_once=2000)

    assert work.pace.rate == pytest.approx(100.0, rel=0.01)
    assert work.admitted > 0.95 * 100.0 * 120.0
    assert work.refused < 0.05 * work.admitted


@pytest.mark.parametrize(
    ("rate", "burst", "lasts", "at_once"),
    [(4.0, 10.0, 2.0, 20), (0.4, 4.0, 10.0, 8), (1.0, 60.0, 10.0, 12), (100.0, 1000.0, 2.0, 300)],
)
def test_the_rate_is_found_where_slots_hold_the_search_back(
    rate: float, burst: float, lasts: float, at_once: int
) -> None:
    work = client(rate, burst=burst, lasts=lasts).work(600.0, at_once=at_once)

    assert not work.pace.searching
    assert work.pace.rate == pytest.approx(rate, rel=0.05)
    assert work.refused < 0.1 * work.admitted


@pytest.mark.parametrize("at_once", [3, 4])
def test_a_limit_that_has_shrunk_is_found_where_slots_hold_back(at_once: int) -> None:
    work = Client(Provider(1.0, 10.0), found(4.0), lasts=2.0).work(900.0, at_once=at_once)

    assert work.pace.rate == pytest.approx(1.0, rel=0.02)
    assert work.admitted > 0.98 * 900
    assert work.refused <= 20


@pytest.mark.parametrize("rate", [0.5, 1.0, 10.0])
def test_once_found_few_are_refused_and_little_is_left_unused(rate: float) -> None:
    work = client(rate, burst=10 * rate).work(200.0 / rate)
    admitted, refused = work.admitted, work.refused

    work.work(1200.0 / rate)

    assert work.admitted - admitted > 0.9 * 1000
    assert work.refused - refused < 0.05 * 1000


def test_a_limit_that_has_grown_is_found() -> None:
    work = client(1.0, burst=10.0).work(300.0)
    work.provider.rate = 1.5

    work.work(1500.0)

    assert work.pace.rate == pytest.approx(1.5, rel=0.1)


def test_a_limit_that_has_grown_far_is_found_too() -> None:
    work = client(1.0, burst=10.0).work(300.0)
    work.provider.rate = 3.0
    work.work(6000.0)
    before = work.admitted

    work.work(6100.0)

    assert work.admitted - before > 270


def test_a_limit_that_has_shrunk_is_found() -> None:
    work = client(4.0, burst=10.0).work(200.0)
    work.provider.rate = 1.0

    work.work(500.0)

    assert work.pace.rate == pytest.approx(1.0, rel=0.2)


def test_a_time_without_any_demand_says_nothing_of_the_rate() -> None:
    work = client(1.0, burst=10.0).work(600.0)
    assert work.pace.rate == pytest.approx(1.0, rel=0.01)
    admitted, refused = work.admitted, work.refused
    work.now = 4200.0

    work.work(4500.0)

    assert work.pace.rate == pytest.approx(1.0, rel=0.02)
    assert work.admitted - admitted > 300
    assert work.refused - refused < 15


# -- searching ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lag", "doubles_every"), [(0.0, 1.0), (0.5, 1.0), (0.75, 1.5), (2.0, 4.0)])
def test_the_search_begins_slowly_and_doubles_every_second_or_as_soon_as_one_would_have_heard(
    lag: float, doubles_every: float
) -> None:
    pace = AdaptiveRate(None, 100.0, lag=lag)
    starts = []
    now = 100.0
    while now < 100.0 + 10 * doubles_every:
        now = pace.ready_at(1.0, now)
        pace.take(1.0, now)
        starts.append(now)

    counts = [sum(n <= (at - 100.0) / doubles_every < n + 1 for at in starts) for n in range(10)]
    assert pace.searching
    assert counts == pytest.approx([0.25 * doubles_every * 2**n / math.log(2) for n in range(10)], abs=1.0)


def test_the_search_begins_faster_where_much_was_started() -> None:
    assert AdaptiveRate(None, 0.0).rate == 0.25
    assert AdaptiveRate(None, 0.0, starts_a_second=1.5).rate == 0.25
    assert AdaptiveRate(None, 0.0, starts_a_second=160.0).rate == 20.0


def test_nothing_starts_in_the_moment_of_the_first_refusal() -> None:
    pace = AdaptiveRate(None, 100.0)

    assert pace.left(100.0) == 0.0
    assert 100.5 < pace.ready_at(1.0, 100.0) < 102.0
    assert pace.reserve(1.0, 100.0) is None


def test_what_is_saved_up_while_searching_is_bounded() -> None:
    pace = AdaptiveRate(None, 0.0)

    assert pace.left(30.0) == pace.left(1e6) == 3.0


def test_few_admitted_between_refusals_add_up() -> None:
    pace = AdaptiveRate(None, 0.0)
    now = 0.0
    for _ in range(4):
        assert pace.searching
        for _ in range(2):  # one is admitted and the next refused
            now = pace.ready_at(1.0, now)
            stamp = pace.take(1.0, now)
        pace.on_refusal(stamp, now, now)

    assert not pace.searching
    assert pace.rate == pytest.approx(4 / now)


def test_half_of_what_little_was_measured_is_where_the_search_goes_on() -> None:
    pace = AdaptiveRate(None, 0.0)
    now = pace.ready_at(1.0, 0.0)
    pace.take(1.0, now)
    now = pace.ready_at(1.0, now)
    pace.on_refusal(pace.take(1.0, now), now, now + 1.0)

    assert pace.searching
    assert pace.rate == pytest.approx(1 / now / 2)


# -- refusals -----------------------------------------------------------------------------------------------------


def test_a_burst_of_refusals_cuts_once() -> None:
    pace = found(8.0)
    for n in range(100):
        pace.take(1.0, n / 8.0)
    stamps = [pace.take(1.0, 12.5) for _ in range(10)]

    cuts = [pace.on_refusal(stamp, 12.5, 13.0) for stamp in stamps]

    assert cuts == [True] + [False] * 9
    assert pace.rate == pytest.approx(8.0, rel=0.01)


def test_who_was_refused_takes_nothing_of_the_rate() -> None:
    """The rest of a burst is given back: the provider did not count it."""
    pace = found(1.0)
    for n in range(10):
        pace.take(1.0, float(n))
    first, second = pace.take(1.0, 10.0), pace.take(1.0, 10.0)
    pace.on_refusal(first, 10.0, 10.0)
    before = pace.left(10.0)

    pace.on_refusal(second, 10.0, 10.0)

    assert pace.left(10.0) == before + 1.0


def test_those_of_a_burst_are_not_taken_for_admitted() -> None:
    pace = found(1.0)
    for n in range(10):
        pace.take(1.0, 1.0 + n)
    burst = [pace.take(1.0, 11.0) for _ in range(5)]
    for stamp in burst:
        pace.on_refusal(stamp, 11.0, 11.5)
    for n in range(10):
        pace.take(1.0, 12.0 + n)

    pace.on_refusal(pace.take(1.0, 21.0), 21.0, 21.0)

    assert pace.rate == pytest.approx(1.0, rel=0.15)  # ten in ten seconds, not fourteen


def test_refusals_with_nothing_admitted_between_are_counted_and_say_nothing_of_the_rate() -> None:
    pace = found(1.0)
    for n in range(10):
        pace.take(1.0, float(n))
    pace.on_refusal(pace.take(1.0, 10.0), 10.0, 10.0)
    rate = pace.rate

    rows = []
    for now in (20.0, 40.0, 60.0):
        pace.on_refusal(pace.take(1.0, now), now, now)
        rows.append(pace.row)

    assert rows == [1, 2, 3]
    assert pace.rate == rate


def test_something_admitted_ends_the_row() -> None:
    pace = found(1.0)
    pace.on_refusal(pace.take(1.0, 0.0), 0.0, 0.0)
    assert pace.row == 1
    for n in range(5):
        pace.take(1.0, 10.0 + n)

    pace.on_refusal(pace.take(1.0, 20.0), 20.0, 20.0)

    assert pace.row == 0


def test_after_a_refusal_the_pace_stays_a_little_behind() -> None:
    pace = found(1.0)
    for n in range(10):
        pace.take(1.0, float(n))

    pace.on_refusal(pace.take(1.0, 10.0), 10.0, 10.0)

    behind = -pace.left(10.0)
    assert 0.0 < behind <= 2.0
    assert pace.ready_at(1.0, 10.0) == pytest.approx(10.0 + (1.0 + behind) / pace.believed_rate)


def test_what_has_flowed_in_since_the_refused_call_began_is_there() -> None:
    pace = found(1.0)
    for n in range(10):
        pace.take(1.0, float(n))
    stamp = pace.take(1.0, 10.0)

    pace.on_refusal(stamp, 10.0, 15.0)

    assert 5 * pace.rate - 2.0 <= pace.left(15.0) < 5 * pace.rate


def test_what_was_started_after_the_refused_call_is_taken() -> None:
    pace = found(1.0)
    for n in range(10):
        pace.take(1.0, float(n))
    stamp = pace.take(1.0, 10.0)
    pace.take(1.0, 11.0)
    pace.take(1.0, 12.0)

    pace.on_refusal(stamp, 10.0, 12.0)

    assert 2 * pace.rate - 4.0 <= pace.left(12.0) < 2 * pace.rate - 2.0


# -- holding ------------------------------------------------------------------------------------------------------


def test_the_longer_nothing_is_refused_the_more_it_leans_forward() -> None:
    pace = found(1.0)
    now, gaps = 0.0, []
    for _ in range(250):
        at = pace.ready_at(1.0, now)
        gaps.append(at - now)
        now = at
        pace.take(1.0, now)

    assert gaps[10] == pytest.approx(1.0, rel=0.01)
    assert gaps[100] == pytest.approx(1 / 1.08, rel=0.01)  # twice the plateau: by the square of that
    assert gaps[240] == pytest.approx(1 / 1.46, rel=0.01)


def test_a_rate_that_was_measured_with_few_calls_leans_more() -> None:
    rates = []
    for admitted in (4.0, 40.0, 100.0):
        pace = found(1.0)
        pace.found = admitted
        pace.pressed = pace.plateau
        rates.append(pace.believed_rate)

    assert rates == pytest.approx([1.2, 1.02, 1.02])


def test_a_rate_that_was_leaned_to_by_half_is_taken_for_the_rate_and_leaned_from() -> None:
    pace = found(1.0)
    now = 0.0
    for _ in range(249):
        now = pace.ready_at(1.0, now)
        pace.take(1.0, now)
    assert pace.rate == 1.0

    now = pace.ready_at(1.0, now)
    pace.take(1.0, now)

    assert pace.rate == pytest.approx(1.5)
    assert pace.limit.amount == pytest.approx(90.0)  # and people see it
    assert pace.pressed == 0.0
    assert pace.ready_at(1.0, now) - now == pytest.approx(1 / 1.5, rel=0.02)


def test_a_rate_that_was_taken_over_is_measured_from_the_refusal_before_it() -> None:
    """Of those in flight some may be refused: to measure from here would be to take them for admitted."""
    pace = found(1.0)
    pace.found = pace.found_in = 50.0
    now = 0.0
    for _ in range(300):
        now = pace.ready_at(1.0, now)
        pace.take(1.0, now)
    assert pace.rate == pytest.approx(1.5)
    assert (pace.anchor_at, pace.anchor_taken) == (0.0, 0.0)

    now = pace.ready_at(1.0, now)
    pace.on_refusal(pace.take(1.0, now), now, now)

    assert 300 / now < pace.rate < 1.5  # more than it was measured last: between the average and the pace
    assert (pace.anchor_at, pace.anchor_taken) == (now, 301.0)


def test_a_search_is_not_taken_for_a_rate_however_long_it_lasts() -> None:
    pace = AdaptiveRate(None, 0.0)
    now = 0.0
    for _ in range(1000):
        now = pace.ready_at(1.0, now)
        pace.take(1.0, now)

    assert pace.searching
    assert pace.rate == 0.25


def test_only_what_the_pace_held_back_makes_it_lean() -> None:
    """Who never asks for all there is finds out nothing."""
    pace = found(1.0)
    for n in range(200):
        pace.take(1.0, 30.0 + 10.0 * n)

    assert pace.pressed == 0.0


@pytest.mark.parametrize(("saved", "pressed"), [(1.0, 1.0), (1.75, 1.0), (2.1, 0.0), (5.0, 0.0)])
def test_who_leaves_a_whole_request_unused_was_not_held_back(saved: float, pressed: float) -> None:
    pace = found(1.0)

    pace.take(1.0, saved)

    assert pace.pressed == pressed


def test_measurements_are_pooled_and_older_ones_count_less() -> None:
    pace = found(1.0)

    pace._measure(20.0, 20.0)
    pace._measure(18.0, 20.0)

    assert pace.rate == pytest.approx((0.6 * 20 + 18) / (0.6 * 20 + 20))


@pytest.mark.parametrize("rate", [0.4, 3.0])
def test_a_measurement_that_chance_does_not_explain_begins_anew(rate: float) -> None:
    """The limit has changed: what was measured before counts no more."""
    pace = found(1.0)
    pace._measure(100.0, 100.0)
    pace.base = pace.rate

    pace._measure(100.0 * rate, 100.0)

    assert pace.found / pace.found_in == pytest.approx(rate, rel=0.01)
    assert pace.rate == pytest.approx(rate, rel=0.01) or pace.rate > 1.5


@pytest.mark.parametrize(("admitted", "plateau"), [(3, 8.0), (20, 20.0), (90, 50.0)])
def test_a_rate_that_turned_out_lower_is_kept_for_as_many_as_it_was_measured_by(admitted: int, plateau: float) -> None:
    pace = found(1.0)

    pace._measure(admitted, 2.0 * admitted)

    assert pace.rate == 0.5
    assert pace.plateau == plateau


def test_what_few_calls_measured_is_not_kept_for_long_though_it_agrees() -> None:
    pace = found(1.0)

    pace._measure(2.0, 2.0)

    assert pace.plateau == 8.0


def test_where_more_is_admitted_at_a_higher_pace_the_rate_is_nearer_to_the_pace() -> None:
    """A window loses what is not used, so that the average is too low; a bucket would have admitted no more."""
    pace = found(1.0)
    pace.found = pace.found_in = 50.0
    pace.pressed = 200.0
    leaned = pace.believed_rate

    pace._measure(120.0, 100.0)

    assert 1.2 < pace.rate < leaned
    assert pace.plateau == 16.0


def test_a_rate_that_was_hardly_measured_is_corrected_by_what_is_admitted_and_not_beyond() -> None:
    pace = AdaptiveRate(None, 0.0)
    pace.begin_at(0.3, 0.0)
    pace._measure(1.0, 40.0)  # one call, and then a refusal by chance: far too low
    pace._anchor(40.0, 0.0)
    pace.rate = 0.7  # after much leaning

    pace._measure(33.0, 165.0)

    assert pace.rate == pytest.approx(0.2, rel=0.02)


def test_a_doubted_rate_begins_at_what_the_refusals_measured() -> None:
    pace = AdaptiveRate(None, 0.0)
    pace.begin_at(0.3, 30.0)

    pace.lower_to(4.0, 20.0)

    assert pace.rate == pytest.approx(0.2)


@pytest.mark.parametrize(("admitted", "elapsed"), [(3.0, 20.0), (8.0, 20.0), (0.0, 0.0)])
def test_a_doubted_rate_is_kept_if_the_refusals_measured_too_little_or_more(admitted: float, elapsed: float) -> None:
    pace = AdaptiveRate(None, 0.0)
    pace.begin_at(0.3, 30.0)

    pace.lower_to(admitted, elapsed)

    assert pace.rate == 0.3


@pytest.mark.parametrize(("unpressed", "idle", "rate"), [(0.0, 0.0, 0.25), (30.0, 0.0, 0.5), (0.0, 60.0, 0.5)])
def test_what_slots_held_back_is_only_a_bound(unpressed: float, idle: float, rate: float) -> None:
    pace = found(1.0)
    pace.unpressed, pace.idle = unpressed, idle

    pace._measure(50.0, 200.0)

    assert pace.rate == pytest.approx(rate)


def test_a_refusal_ends_the_leaning() -> None:
    pace = found(1.0)
    pace.pressed = 100.0

    pace.on_refusal(pace.take(1.0, 100.0), 100.0, 100.0)

    assert pace.pressed == 0.0


def test_a_rate_that_is_confirmed_is_kept_for_longer() -> None:
    pace = found(1.0)
    plateaus = [pace.plateau]
    now = 0.0
    for _ in range(8):
        for _ in range(100):
            now = pace.ready_at(1.0, now)
            pace.take(1.0, now)
        now = pace.ready_at(1.0, now)
        pace.on_refusal(pace.take(1.0, now), now, now)
        plateaus.append(pace.plateau)

    assert plateaus[0] < plateaus[1] < plateaus[2]
    assert plateaus[-1] == 400.0  # and no longer


def refuse_every_hundredth(pace: AdaptiveRate, times: int) -> None:
    now = 0.0
    for _ in range(times):
        for _ in range(100):
            now = pace.ready_at(1.0, now)
            pace.take(1.0, now)
        now = pace.ready_at(1.0, now)
        pace.on_refusal(pace.take(1.0, now), now, now)


def test_a_part_of_a_stated_bucket_is_kept_for_longest() -> None:
    """What is stated is the most that may be found, and only if others stop using it."""
    pace = AdaptiveRate(None, 0.0)
    pace.begin_at(1.0, 0.0, beside_bucket=True)

    refuse_every_hundredth(pace, 8)

    assert pace.plateau == 800.0


@pytest.mark.parametrize(("beside_bucket", "highest"), [(True, 1.05), (False, 1.2)])
def test_more_than_expected_is_a_sign_of_a_window_but_not_beside_a_bucket(beside_bucket: bool, highest: float) -> None:
    """A bucket admits what flows in: what it was measured at was too low."""
    pace = AdaptiveRate(None, 0.0)
    pace.begin_at(0.9, 0.0, beside_bucket=beside_bucket)
    pace.found, pace.found_in, pace.pressed = 20.0, 20.0 / 0.9, 150.0
    for number in range(100):
        pace.take(1.0, float(number))

    pace.on_refusal(pace.take(1.0, 100.0), 100.0, 100.0)

    assert 0.95 < pace.rate <= highest
    assert (pace.rate > 1.05) == (not beside_bucket)


def test_that_an_estimate_is_of_a_stated_bucket_outlives_the_process() -> None:
    pace, other = AdaptiveRate(None, 0.0), AdaptiveRate(None, 0.0)
    pace.begin_at(1.0, 0.0, beside_bucket=True)

    other.unpack(json.loads(json.dumps(pace.pack())))

    assert other.beside_bucket


def test_what_is_not_used_for_a_minute_is_lost() -> None:
    pace = found(2.0)

    assert pace.left(1e6) == 120.0


def test_a_slow_pace_saves_up_enough_for_one_request() -> None:
    pace = found(0.001)

    assert pace.left(1e9) == 3.0
    assert pace.ready_at(1.0, 1e9) == 1e9
    assert pace.ready_at(5.0, 1e9) == 1e9  # more than there can be: as soon as all is there


def test_undoing_and_correcting_give_back() -> None:
    pace = found(1.0)
    before = pace.left(10.0)
    stamp = pace.take(1.0, 10.0)
    pace.undo(stamp, 1.0)
    assert (pace.left(10.0), pace.taken) == (before, 0.0)

    stamp = pace.take(1.0, 10.0)
    assert pace.correct(stamp, 2.0, 10.0) == (3.0, stamp[1])
    assert (pace.left(10.0), pace.taken) == (before - 3.0, 1.0)


def test_what_was_undone_did_not_press() -> None:
    pace = found(1.0)
    pace.take(1.0, 1.0)
    pressed = pace.pressed

    pace.undo(pace.take(1.0, 2.0), 1.0)

    assert pace.pressed == pressed


def test_the_instant_it_names_is_one_at_which_it_keeps_its_word() -> None:
    for pace in (found(0.3), found(70.0), AdaptiveRate(None, 0.0), AdaptiveRate(None, 0.0, lag=3.0)):
        now = 0.0
        for _ in range(300):
            now = pace.ready_at(1.0, now)
            assert pace.reserve(1.0, now) is not None


def test_a_search_that_nothing_ends_lets_anything_start() -> None:
    pace = AdaptiveRate(None, 0.0)

    assert all(pace.reserve(1.0, 1000.0) is not None for _ in range(10_000))


# -- too fast, though within the limits ---------------------------------------------------------------------------


def slowed(pace: AdaptiveRate, now: float, speed: float = 0.0) -> bool:
    """A call that the pace let start just now met with that."""
    return pace.slow_down(pace.take(1.0, now), speed, now, known=True)


def test_slowing_down_halves_the_rate() -> None:
    pace = found(8.0)

    assert slowed(pace, 100.0)

    assert pace.rate == 4.0
    assert pace.limit.amount == 240.0
    assert pace.left(100.0) == 0.0
    assert (pace.anchor_at, pace.anchor_taken) == (100.0, 1.0)


def test_slowing_down_gives_nobody_what_is_owed() -> None:
    pace = found(8.0)
    pace.take(50.0, 0.0)

    slowed(pace, 0.0)

    assert pace.left(0.0) == -51.0


def test_slowing_down_halves_what_the_pace_had_leaned_to() -> None:
    pace = found(8.0)
    pace.pressed = 50.0

    slowed(pace, 100.0)

    assert pace.rate == pytest.approx(8.0 * 1.02 / 2)
    assert pace.pressed == 0.0


def test_a_rate_that_was_slowed_down_leans_forward_late() -> None:
    pace = found(8.0)

    slowed(pace, 100.0)

    assert pace.plateau == 400.0


@pytest.mark.parametrize(("speed", "rate"), [(10.0, 5.0), (160.0, 20.0)])
def test_slowing_down_ends_a_search_at_half_of_what_was_started_but_no_faster_than_it_began(
    speed: float, rate: float
) -> None:
    pace = AdaptiveRate(None, 0.0, starts_a_second=160.0)

    assert slowed(pace, 0.0, speed)

    assert not pace.searching
    assert pace.rate == rate


@pytest.mark.parametrize(("speed", "rate"), [(10.0, 5.0), (0.1, 0.25)])
def test_a_pace_that_is_new_is_half_of_what_was_started(speed: float, rate: float) -> None:
    pace = AdaptiveRate(None, 0.0, starts_a_second=speed)

    assert pace.slow_down(None, speed, 0.0, known=False)

    assert not pace.searching
    assert pace.rate == rate


def test_a_burst_slows_down_once() -> None:
    pace = found(64.0)
    stamps = [pace.take(1.0, 100.0) for _ in range(5)]

    assert [pace.slow_down(stamp, 0.0, 100.5, known=True) for stamp in stamps] == [True] + [False] * 4

    assert pace.rate == 32.0


def test_a_burst_that_was_refused_already_does_not_slow_down_besides() -> None:
    pace = found(64.0)
    first, second = pace.take(1.0, 100.0), pace.take(1.0, 100.0)
    pace.on_refusal(first, 100.0, 100.5)

    assert not pace.slow_down(second, 0.0, 100.5, known=True)


def test_a_call_that_began_before_the_pace_was_known_does_not_slow_it_down() -> None:
    pace = found(64.0)

    assert not pace.slow_down(None, 100.0, 1.0, known=True)

    assert pace.rate == 64.0


def test_a_rate_is_not_halved_for_ever() -> None:
    pace = found(8.0)
    for n in range(20):
        slowed(pace, 100.0 * n)

    assert pace.rate == 0.25


def test_slowing_down_never_speeds_up() -> None:
    pace = found(0.01)

    slowed(pace, 100.0)

    assert pace.rate == 0.01


# -- how long a refusal takes -------------------------------------------------------------------------------------


def test_how_long_a_refusal_takes_is_kept_and_half_of_it_forgotten_with_each_that_was_quicker() -> None:
    pace = AdaptiveRate(None, 0.0, lag=2.0)
    lags = [pace.lag]
    for now, took in ((10.0, 0.5), (20.0, 8.0), (40.0, 1.0), (60.0, 1.0), (80.0, 1.0), (100.0, 1.0)):
        pace.on_refusal(pace.take(1.0, now), now, now + took)
        lags.append(pace.lag)

    assert lags == [2.0, 1.0, 8.0, 4.0, 2.0, 1.0, 1.0]


def test_each_refusal_of_a_burst_tells_how_long_it_took() -> None:
    pace = found(1.0)
    first, second = pace.take(1.0, 10.0), pace.take(1.0, 10.0)

    assert pace.on_refusal(first, 10.0, 11.0)
    assert not pace.on_refusal(second, 10.0, 13.0)

    assert pace.lag == 3.0


@pytest.mark.parametrize(("lag", "plateau"), [(0.0, 50.0), (2.5, 50.0), (5.0, 100.0), (20.0, 400.0), (60.0, 1200.0)])
def test_it_does_not_lean_forward_on_calls_of_which_no_refusal_can_have_come_back(lag: float, plateau: float) -> None:
    pace = found(10.0)
    pace.lag = lag
    pace.pressed = plateau

    pace.take(1.0, 0.0)
    pace.undo((1.0, 1.0), 1.0)

    assert pace.ready_at(1.0, 0.0) == pytest.approx(1.0 / (10.0 * 1.02))


# -- time in which so little was asked for that some was lost -------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "at", "overflowed"), [(1.0, 59.0, False), (1.0, 60.0, True), (0.01, 299.0, False), (0.01, 301.0, True)]
)
def test_more_than_can_be_saved_up_is_lost(rate: float, at: float, overflowed: bool) -> None:
    pace = found(rate)

    pace.take(1.0, at)

    assert pace.overflowed is overflowed


def test_what_is_saved_up_and_used_later_is_not_lost() -> None:
    pace = found(1.0)
    for now in range(50, 1000, 50):
        for _ in range(50):
            pace.take(1.0, float(now))

    assert not pace.overflowed


def test_after_a_rest_only_a_few_start_at_once_and_nothing_counts_as_lost() -> None:
    """A bucket keeps the rest, and a window would refuse it."""
    pace = found(1.0)

    pace.hold_until(100.0)

    assert pace.left(100.0) == pytest.approx(2.0)
    pace.take(1.0, 100.0)
    assert not pace.overflowed


def test_a_search_does_not_go_on_during_a_rest() -> None:
    pace = AdaptiveRate(None, 0.0)

    pace.hold_until(100.0)
    pace.take(2.0, 100.0)

    assert pace.ready_at(1.0, 100.0) > 101.0


@pytest.mark.parametrize(
    ("rests_until", "at", "overflowed"), [(0.0, 5.0, False), (0.0, 5.5, True), (4.0, 9.0, False), (4.0, 9.5, True)]
)
def test_while_searching_some_is_lost_when_nobody_asked_for_five_seconds(
    rests_until: float, at: float, overflowed: bool
) -> None:
    pace = AdaptiveRate(None, 0.0)
    pace.hold_until(rests_until)
    pace.hold_until(-1.0)  # the later one holds
    assert pace.left(at) == 3.0

    pace.take(1.0, at)

    assert pace.overflowed is overflowed


def test_slots_that_hold_the_search_back_lose_nothing() -> None:
    pace = AdaptiveRate(None, 0.0)
    for now in range(5, 300, 5):
        pace.take(1.0, float(now))

    assert not pace.overflowed


@pytest.mark.parametrize(("admitted", "rate"), [(10, 1.0), (61, 1.0), (150, 1.5)])
def test_what_was_admitted_while_some_was_lost_is_the_least_that_flowed_in(admitted: int, rate: float) -> None:
    pace = found(1.0)
    for _ in range(admitted):
        pace.take(1.0, 100.0)
    assert pace.overflowed

    assert pace.on_refusal(pace.take(1.0, 100.0), 100.0, 100.0)

    assert (pace.rate, pace.plateau, pace.row) == (rate, 50.0, 0)
    assert (pace.anchor_at, pace.anchor_taken, pace.overflowed) == (100.0, admitted + 1.0, False)  # measured from here


def test_the_refusal_after_the_one_that_said_the_least_measures() -> None:
    pace = found(1.0)
    for _ in range(10):
        pace.take(1.0, 100.0)
    pace.on_refusal(pace.take(1.0, 100.0), 100.0, 100.0)
    for n in range(10):
        pace.take(1.0, 102.0 + 2.0 * n)

    pace.on_refusal(pace.take(1.0, 120.0), 120.0, 120.0)

    assert pace.rate == pytest.approx(math.sqrt(10 / 20))


def test_a_search_goes_on_after_a_refusal_that_says_only_the_least() -> None:
    pace = AdaptiveRate(None, 0.0)
    for _ in range(8):
        pace.take(1.0, 20.0)

    assert pace.on_refusal(pace.take(1.0, 20.0), 20.0, 20.0)

    assert pace.searching
    assert (pace.rate, pace.found, pace.overflowed) == (0.4, 0.0, False)


def test_a_measurement_counts_though_more_could_have_been_started() -> None:
    """Ten in the time in which there could have been twenty, and none of them lost: the provider bears no more."""
    pace = found(1.0)
    for n in range(10):
        pace.take(1.0, 2.0 + 2.0 * n)

    pace.on_refusal(pace.take(1.0, 20.0), 20.0, 20.0)

    assert pace.rate == pytest.approx(math.sqrt(10 / 20))


def test_what_was_lost_before_traffic_grew_too_fast_is_past() -> None:
    pace = found(1.0)
    stamp = pace.take(1.0, 100.0)
    assert pace.overflowed

    pace.slow_down(stamp, 0.0, 100.0, known=True)

    assert not pace.overflowed


def test_refusals_with_nothing_admitted_between_are_measured_over() -> None:
    pace = found(1.0)
    for n in range(1, 11):
        pace.take(1.0, float(n))
    pace.on_refusal(pace.take(1.0, 11.0), 11.0, 11.0)
    pace.hold_until(20.0)
    pace.on_refusal(pace.take(1.0, 20.0), 20.0, 20.0)
    pace.hold_until(31.0)
    assert (pace.anchor_at, pace.row) == (11.0, 1)
    for _ in range(10):
        pace.take(1.0, 31.0)

    pace.on_refusal(pace.take(1.0, 32.0), 32.0, 32.0)

    assert pace.rate == pytest.approx((0.6 * 10 + 10) / (0.6 * 11 + 32.0 - 11.0))


# -- what people see, and what is kept ----------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "amount", "per"), [(2.0, 120.0, 60.0), (1 / 60, 1.0, 60.0), (0.01, 1.0, 100.0)])
def test_people_see_requests_a_minute_or_one_in_so_many_seconds(rate: float, amount: float, per: float) -> None:
    pace = found(rate)
    pace.unpack(pace.pack())

    assert (pace.limit.dimension, pace.limit.amount) == ("requests", amount)
    assert pace.limit.per == pytest.approx(per)
    assert pace.learned


def test_a_copy_from_a_record_cannot_be_told_from_the_original() -> None:
    work = client(3.0, burst=6.0).work(20.0)
    packed = json.loads(json.dumps(work.pace.pack()))
    other = AdaptiveRate(packed["learned"][1], 0.0)
    other.unpack(packed)
    assert other.pack() == work.pace.pack()
    assert other.limit == work.pace.limit

    now = 20.0
    for n in range(50):
        at = other.ready_at(1.0, now)
        assert at == work.pace.ready_at(1.0, now)
        now = at
        stamps = [pace.take(1.0, now) for pace in (other, work.pace)]
        assert stamps[0] == stamps[1]
        if n % 7 == 0:
            assert other.on_refusal(stamps[0], now, now + 0.5) == work.pace.on_refusal(stamps[1], now, now + 0.5)
    assert other.pack() == work.pace.pack()


def test_a_reset_forgives_what_is_owed_and_keeps_the_rate() -> None:
    pace = found(2.0)
    pace.take(50.0, 0.0)

    pace.reset()

    assert pace.left(0.0) == 0.0
    assert pace.rate == 2.0


def test_one_call_can_start_at_the_end_of_a_cooldown_however_slow_the_search_is() -> None:
    pace = AdaptiveRate(None, 0.0)

    pace.hold_until(30.0)

    assert pace.ready_at(1.0, 30.0) == 30.0
    assert pace.reserve(1.0, 30.0) is not None
    assert pace.reserve(1.0, 30.0) is None


def test_a_cooldown_is_at_least_one_refill_of_what_was_measured() -> None:
    pace = AdaptiveRate(None, 0.0)
    pace.found, pace.found_in = 4.0, 2_000.0

    assert pace.cooldown(1.0) == 500.0


def test_what_admits_nothing_for_an_hour_is_tried_again_a_day_after_its_first_call() -> None:
    pace = AdaptiveRate(None, 0.0)

    assert pace.cooldown(80_000.0) == 6_400.0
