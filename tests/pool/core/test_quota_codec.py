"""A record keeps the whole state of a quota: a process that loads it behaves like the one that wrote it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from agentos import Limit
from agentos.pool.core.cost import DIMENSIONS
from agentos.pool.core.limits.base import FOREVER
from agentos.pool.core.limits.bucket import Bucket
from agentos.pool.core.limits.calendar import CalendarWindow, WallTime
from agentos.pool.core.limits.sliding import SlidingWindow
from agentos.pool.core.quota_codec import (
    merge_records,
    named_limits,
    pack_quota,
    reset_record,
    shift_record,
    shift_record_epoch,
    unpack_quota,
    without_in_flight,
)
from agentos.pool.core.records import Block, LeaseRequest, Quota
from agentos.pool.core.reservations import reserve
from agentos.pool.core.states import Gate

WALL = WallTime(1_700_000_000.0)
MODELS = (None, "small", "large-2024-08-06", "other")
KINDS = (
    Limit("requests", 4, per=8),
    Limit("requests", 4, per=8, burst=1),
    Limit("requests", 5, per=4, window="sliding"),
    Limit("requests", 40, per="day"),
    Limit("tokens", 64, per=16),
    Limit("tokens", 64, per=16, burst=256),
    Limit("tokens", 128, per=8, window="sliding"),
    Limit("tokens", 2048, per="day", resets_at="07:00", tz="America/Los_Angeles"),
    Limit("input_tokens", 64, per=32, model="small"),
    Limit("output_tokens", 64, per=8, window="sliding", model="large"),
    Limit("tokens", 512, per="day", model="large"),
)


def quota_of(limits: Sequence[Limit]) -> Quota:
    return Quota("q", tuple(limits), WALL)


def kept(record: object) -> Any:
    """A record, as it comes back from a file."""
    return json.loads(json.dumps(record))


def copy_of(quota: Quota, limits: Sequence[Limit]) -> Quota:
    other = quota_of(limits)
    unpack_quota(other, kept(pack_quota(quota)))
    return other


def nearly(found: object) -> object:
    """The same up to rounding errors: some numbers that are shifted are not exact in binary."""
    if isinstance(found, (list, tuple)):
        return [nearly(each) for each in found]
    if isinstance(found, dict):
        return {name: nearly(each) for name, each in found.items()}
    return pytest.approx(found, abs=1e-6) if isinstance(found, float) else found


def unknown_in_flight(record: Any) -> int:
    return sum(packed["usage"]["in_flight"] for packed in record["limits"].values() if "usage" in packed)


class Life:
    """What happens to a quota, by chance. All amounts are exact in binary, and instants nearly so."""

    def __init__(self, quota: Quota, now: float = 1024.0) -> None:
        self.quota = quota
        self.now = now
        self.taken: list[tuple[int, float, Any]] = []  # which limit, how much, and the stamp

    def moved_to(self, quota: Quota, by: float = 0.0) -> Life:
        """The same life, on a quota that took the record over."""
        life = Life(quota, self.now + by)
        life.taken = list(self.taken)
        return life

    def step(self, luck: random.Random) -> object:
        """One thing that happens; what the quota answers to it."""
        self.now += luck.choice((0, 0, 1, 2, 16, 256)) / 64
        happenings = (self._reserve, self._reserve, self._correct, self._undo, self._close, self._use, self._answer)
        return luck.choice(happenings)(luck)

    def _reserve(self, luck: random.Random) -> object:
        amounts = [luck.choice((None, luck.randint(0, 128) / 4)) for _ in DIMENSIONS[1:]]
        ask = LeaseRequest((1.0, amounts[0], amounts[1], amounts[2]), luck.choice(MODELS))
        draws = reserve(self.quota, ask, self.now)
        if draws is None:
            return None
        limits = list(self.quota.limits)
        found = [(limits.index(state), amount, guessed, stamp) for state, amount, guessed, stamp in draws]
        self.taken += [(index, amount, stamp) for index, amount, _, stamp in found]
        return found

    def _correct(self, luck: random.Random) -> object:
        if not self.taken:
            return None
        place = luck.randrange(len(self.taken))  # perhaps one of long ago
        index, amount, stamp = self.taken[place]
        actual = luck.randint(0, 256) / 4
        stamp = self.quota.limits[index].correct(stamp, actual - amount, self.now)
        self.taken[place] = (index, actual, stamp)
        return stamp

    def _answer(self, luck: random.Random) -> object:
        """A call that was not corrected is admitted or refused."""
        if not self.taken:
            return None
        index, amount, stamp = self.taken.pop(luck.randrange(len(self.taken)))
        state = self.quota.limits[index]
        if luck.random() < 0.4:
            if isinstance(state, SlidingWindow):
                state.admit(stamp)
        elif isinstance(state, (Bucket, SlidingWindow, CalendarWindow)):
            state.refuse(stamp, amount, self.now)
        return [state.left(self.now), state.ready_at(1.0, self.now)]

    def _undo(self, luck: random.Random) -> object:
        for state in self.quota.limits:
            amount = luck.randint(1, 16) / 4
            stamp = state.reserve(amount, self.now)
            if stamp is not None:
                state.undo(stamp, amount)
        return None

    def _close(self, luck: random.Random) -> object:
        block = Block(Gate.COOLING, self.now + luck.randint(-64, 512) / 64, self.now, "429")
        if luck.random() < 0.1:
            self.quota.set_spent(luck.choice((None, Block(Gate.SPENT, FOREVER, self.now, "no money"))))
            return None
        return self.quota.block(luck.choice((None, "small", "large")), block)

    def _use(self, luck: random.Random) -> object:
        usage = luck.choice(self.quota.limits).usage
        if luck.random() < 0.3:
            return usage.end_unreported()
        for _ in range(luck.choice((1, 1, 30))):
            usage.add(luck.randint(0, 400) / 4)
        return usage.in_flight

    def answers(self, since: float = 0.0) -> list[object]:
        """All that can be asked of a quota without changing it, with instants as seconds after *since*."""
        now = self.now
        found: list[object] = [self.quota.open_wide, self.quota.closed, self.quota.scoped]
        for model in MODELS:
            block = self.quota.block_for(model)
            found.append(self.quota.closed_for(model) - since)
            found.append(block and [block.gate, block.until - since, block.since - since, block.evidence])
        for state in self.quota.limits:
            found += [state.ready_at(need, now) - since for need in (0.0, 1.0, state.largest)]
            found += [state.left(now), state.usage.p95, state.usage.set_aside, state.usage.silent]
        return found


def lived(luck: random.Random) -> tuple[Life, list[Limit]]:
    """A quota that much has happened to, and its limits."""
    limits = luck.sample(KINDS, luck.randint(1, 5))
    life = Life(quota_of(limits))
    for _ in range(luck.randint(0, 120)):
        life.step(luck)
    for state in life.quota.limits:
        state.usage._ranked_at = 0  # what was seen is ranked now and then; whoever takes it over does so at once
    return life, limits


def assert_alike(before: Life, after: Life, by: float, luck: random.Random) -> None:
    """Two quotas answer alike, one of them *by* seconds later, whatever happens to both."""
    before.taken, after.taken = [], []  # they may have other limits
    assert after.answers(since=by) == nearly(before.answers())
    for _ in range(20 if before.quota.limits else 0):
        happens = luck.getrandbits(32)
        before.step(random.Random(happens))
        after.step(random.Random(happens))
        assert after.answers(since=by) == nearly(before.answers())


def test_a_quota_loaded_from_a_record_behaves_like_the_original() -> None:
    for number in range(100):
        luck = random.Random(number)
        life, limits = lived(luck)

        other = life.moved_to(copy_of(life.quota, limits))

        assert other.answers() == life.answers(), number
        for _ in range(30):
            happens = luck.getrandbits(32)
            assert other.step(random.Random(happens)) == life.step(random.Random(happens)), number
            assert other.answers() == life.answers(), number


def test_what_is_taken_over_is_in_the_place_of_all_that_was_there() -> None:
    """A quota that knew other things, as one does that hears what others did."""
    for number in range(30):
        life, limits = lived(random.Random(number))
        other = Life(quota_of(limits))
        for step in range(40):
            other.step(random.Random(1000 * number + step))

        unpack_quota(other.quota, kept(pack_quota(life.quota)))

        other.now = life.now
        assert other.answers() == life.answers(), number
        assert kept(pack_quota(other.quota)) == kept(pack_quota(life.quota)), number


def test_what_requests_were_seen_to_use_is_ranked_as_by_hand() -> None:
    for count in (1, 5, 63, 64, 65, 200):
        quota = quota_of([Limit("tokens", 1000)])
        luck = random.Random(count)
        amounts = [luck.randint(1, 999) for _ in range(count)]
        for amount in amounts:
            quota.limits[0].usage.add(amount)

        ranked = sorted(amounts[-64:])
        expected = ranked[-(-95 * len(ranked) // 100) - 1]

        assert copy_of(quota, [Limit("tokens", 1000)]).limits[0].usage.p95 == expected


# -- limits that are not the same everywhere ------------------------------------------------------------------------


def test_limits_that_only_another_process_knows_stay_in_the_record() -> None:
    mine, ours, theirs = Limit("requests", 4, per=8), Limit("tokens", 64, per=16), Limit("requests", 40, per="day")
    other = Life(quota_of([ours, theirs]))
    other._reserve(random.Random(3))
    record = kept(pack_quota(other.quota))
    quota = quota_of([mine, ours])
    unpack_quota(quota, record)
    quota.block(None, Block(Gate.COOLING, 2000.0, 1024.0, "429"))

    written = kept(pack_quota(quota, record))

    assert written["limits"].items() >= record["limits"].items()
    assert len(written["limits"]) == 3
    again = quota_of([ours, theirs])
    unpack_quota(again, written)
    assert [state.left(1024.0) for state in again.limits] == [state.left(1024.0) for state in other.quota.limits]
    assert again.closed_until == 2000.0


@pytest.mark.parametrize(
    ("was", "becomes", "left"),
    [
        (Limit("requests", 8, window="sliding"), Limit("requests", 10, window="sliding"), 4.0),
        (Limit("requests", 8, window="sliding"), Limit("requests", 4, window="sliding"), -2.0),
        (Limit("requests", 8, per="day"), Limit("requests", 10, per="day"), 4.0),
        (Limit("requests", 8, per=64), Limit("requests", 16, per=64), 4.0),  # a bucket: what part of it is full
        (Limit("requests", 8, per=64), Limit("requests", 8, per=64, burst=1), 1.0),
    ],
)
def test_a_limit_whose_amount_was_edited_keeps_its_count(was: Limit, becomes: Limit, left: float) -> None:
    quota = quota_of([was])
    for _ in range(6):
        assert quota.limits[0].reserve(1.0, 1024.0) is not None

    edited = quota_of([becomes])
    unpack_quota(edited, kept(pack_quota(quota)))

    assert edited.limits[0].left(1024.0) == left


def test_two_limits_of_the_same_kind_are_kept_apart() -> None:
    """One for the minute's amount, one for how much may start at once."""
    limits = [Limit("tokens", 64, per=16, burst=256), Limit("tokens", 256, per=16, burst=32)]
    quota = quota_of(limits)
    for state, amount in zip(quota.limits, (200.0, 8.0), strict=True):
        assert state.reserve(amount, 1024.0) is not None

    other = copy_of(quota, limits)

    assert [state.left(1024.0) for state in other.limits] == [56.0, 24.0]


def test_what_is_limited_has_a_name_of_its_own() -> None:
    different = [
        Limit("requests", 9),
        Limit("tokens", 9),
        Limit("tokens", 9, per=61),
        Limit("tokens", 9, window="sliding"),
        Limit("tokens", 9, model="a"),
        Limit("tokens", 9, model="b"),
        Limit("tokens", 9, per="day"),
        Limit("tokens", 9, per="day", resets_at="07:00"),
        Limit("tokens", 9, per="day", tz="Europe/Berlin"),
    ]

    names = [named_limits(quota_of([limit]))[0][0] for limit in different]

    assert len(set(names)) == len(different)
    assert names == [name for name, _ in named_limits(quota_of(different))]


def test_a_limit_that_nothing_is_known_of_is_unused() -> None:
    life, limits = lived(random.Random(5))

    unpack_quota(life.quota, {})

    assert life.answers() == Life(quota_of(limits), life.now).answers()


@pytest.mark.parametrize(
    "record",
    [{"spent": None}, {"blocks": {}}, {"limits": {}}, {"limits": {"bananas per 60s continuous": {"peeled": 3}}}],
    ids=str,
)
def test_what_is_missing_from_a_record_or_new_in_it_does_no_harm(record: dict[str, Any]) -> None:
    quota = quota_of([Limit("tokens", 64, per=16)])
    other = kept(pack_quota(quota))
    for packed in other.get("limits", {}).values():
        packed["invented later"] = [1, 2]

    unpack_quota(quota, other)
    unpack_quota(quota, {**record, "invented later": {}})

    assert quota.limits[0].left(1024.0) == 64.0
    assert quota.closed_until == -FOREVER
    assert pack_quota(quota, record)["limits"].keys() >= record.get("limits", {}).keys()


def test_a_stamp_that_the_record_is_too_young_to_know_corrects_nothing() -> None:
    """A person had all forgotten meanwhile, and others began anew: what there is to correct is not ours."""
    window = SlidingWindow(Limit("tokens", 600, per=60, window="sliding"))
    stamps = [window.take(100.0, 1024.0) for _ in range(3)]
    window.unpack({"starts": [[1025.0, 10.0]], "takes": 1})

    for stamp in stamps[1:]:
        window.correct(stamp, 50.0, 1026.0)

    assert window.left(1026.0) == 590.0


def test_a_record_that_is_forgotten_keeps_what_leases_in_force_will_ask_for_and_nothing_else() -> None:
    for number in range(50):
        life, limits = lived(random.Random(number))
        record = kept(pack_quota(life.quota))
        flying = [state.usage.in_flight for state in life.quota.limits]

        unpack_quota(life.quota, kept(reset_record(record)))

        assert life.answers() == Life(quota_of(limits), life.now).answers(), number
        assert [state.usage.in_flight for state in life.quota.limits] == flying
        before = [state.left(life.now) for state in life.quota.limits]
        for index, amount, stamp in life.taken:
            life.quota.limits[index].correct(stamp, -amount, life.now)
        assert [state.left(life.now) for state in life.quota.limits] == before, number  # what is gone is gone


def test_what_was_in_flight_and_forgotten_lands_without_a_trace() -> None:
    usage = quota_of([Limit("tokens", 64)]).limits[0].usage

    usage.end_in_flight()

    assert usage.in_flight == 0


# -- another boot -----------------------------------------------------------------------------------------------------


def test_moving_a_record_moves_every_instant_and_nothing_else() -> None:
    for number in range(100):
        luck = random.Random(number)
        life, limits = lived(luck)
        record = kept(pack_quota(life.quota))
        by = luck.randint(-(2**20), 2**20) / 64
        limits = [limit for limit in limits if limit.per != "day"]
        before, after = life.moved_to(quota_of(limits)), life.moved_to(quota_of(limits), by)
        unpack_quota(before.quota, record)

        unpack_quota(after.quota, kept(shift_record_epoch(record, by)))

        assert after.answers(since=by) == nearly(before.answers()), number


def test_shifting_the_epoch_keeps_days_and_ends_probes() -> None:
    limits = [Limit("tokens", 64, per="day"), Limit("tokens", 64, per=16)]
    quota = quota_of(limits)
    assert reserve(quota, LeaseRequest(), 1024.0) is not None  # of unknown cost
    quota.limits[0].take(48.0, 1024.0)
    before = kept(pack_quota(quota))

    after = shift_record_epoch(before, -1000.0)

    day, _ = (name for name, _ in named_limits(quota))
    expected = {**before["limits"][day], "usage": {**before["limits"][day]["usage"], "in_flight": 0}}
    assert after["limits"][day] == expected
    assert (unknown_in_flight(before), unknown_in_flight(after)) == (2, 0)
    assert shift_record_epoch({}, 7.0) == {}


# -- another clock ----------------------------------------------------------------------------------------------------


def test_shifting_a_record_moves_every_instant_and_nothing_else() -> None:
    for number in range(100):
        luck = random.Random(number)
        life, limits = lived(luck)
        record = kept(pack_quota(life.quota))
        by = luck.randint(-(2**20), 2**20) / 64
        limits = [limit for limit in limits if limit.per != "day"]
        before, after = life.moved_to(quota_of(limits)), life.moved_to(quota_of(limits), by)
        unpack_quota(before.quota, record)

        unpack_quota(after.quota, kept(shift_record(record, by)))

        assert_alike(before, after, by, luck)


def test_shifting_a_record_back_leaves_it_as_it_was() -> None:
    for number in range(100):
        luck = random.Random(number)
        record = kept(pack_quota(lived(luck)[0].quota))
        by = luck.randint(-(2**20), 2**20) / 64

        assert kept(shift_record(shift_record(record, by), -by)) == nearly(record), number


def test_shifting_a_record_keeps_probes_in_flight() -> None:
    quota = quota_of([Limit("tokens", 64, per="day"), Limit("tokens", 64, per=16)])
    assert reserve(quota, LeaseRequest(), 1024.0) is not None  # of unknown cost
    record = {**kept(pack_quota(quota)), "probation": {"": 1020.0, "small": None}}

    after = shift_record(record, 500.0)

    assert unknown_in_flight(after) == unknown_in_flight(record) == 2
    assert after["probation"] == {"": 1520.0, "small": None}


def test_a_record_that_is_not_shifted_is_the_very_same() -> None:
    record = {"spent": ["spent", None, 5.0, ""]}

    assert shift_record(record, 0.0) is record


# -- two who have not heard of each other -----------------------------------------------------------------------------


def test_what_only_one_of_two_knows_is_known() -> None:
    one = {"spent": ["spent", None, 5.0, "no money"], "limits": {"requests per 60s": {"used": 1}}}
    other = {"width": {"width": 3}, "limits": {"tokens per 60s": {"used": 9}}}

    assert merge_records(one, other) == {
        "spent": ["spent", None, 5.0, "no money"],
        "width": {"width": 3},
        "limits": {"requests per 60s": {"used": 1}, "tokens per 60s": {"used": 9}},
    }


def test_what_both_know_is_as_the_first_says() -> None:
    assert merge_records({"limits": {"a": {"used": 1}}}, {"limits": {"a": {"used": 2}}}) == {
        "limits": {"a": {"used": 1}}
    }


@pytest.mark.parametrize(("first", "second", "longer"), [(5.0, 9.0, 9.0), (9.0, 5.0, 9.0), (None, 9.0, None)])
def test_of_two_coolings_the_longer_one_counts(first: float | None, second: float, longer: float | None) -> None:
    one, other = ({"blocks": {"": ["cooling", until, 1.0, ""]}} for until in (first, second))

    assert merge_records(one, other)["blocks"][""][1] == longer


def test_coolings_of_different_models_all_count() -> None:
    one, other = ({"blocks": {model: ["cooling", 5.0, 1.0, ""]}} for model in ("small", "large"))

    assert merge_records(one, other)["blocks"].keys() == {"small", "large"}


# -- a process that cannot say how its request ended ------------------------------------------------------------------


def test_a_request_of_unknown_cost_that_ended_with_its_process_counts_no_more() -> None:
    limits = [Limit("tokens", 64, per=16), Limit("input_tokens", 64, per=16)]
    quota = quota_of(limits)
    assert reserve(quota, LeaseRequest(), 1024.0) is not None
    assert reserve(quota, LeaseRequest(), 1024.0) is None  # one at a time
    record = kept(pack_quota(quota))
    first, second = (name for name, _ in named_limits(quota))

    one, both = (kept(without_in_flight(record, names)) for names in ([first], [first, second, "bananas per day"]))

    assert record == kept(pack_quota(quota))
    assert one["limits"][second] == record["limits"][second]
    unpack_quota(quota, one)
    assert reserve(quota, LeaseRequest(), 1024.0) is None
    unpack_quota(quota, both)
    assert reserve(quota, LeaseRequest(), 1024.0) is not None
    assert without_in_flight(both, [first, second]) == both  # never below none
    assert unknown_in_flight(without_in_flight({}, [first])) == 0


def test_what_a_bucket_was_lowered_by_is_forgotten_with_the_rest() -> None:
    bucket = Bucket(Limit("requests", 60, per=60))
    bucket.refuse(None, 1.0, 0.0)
    bucket.follow(10.0, 30.0)
    assert {"drained", "full_guard"} <= bucket.pack().keys()

    packed = reset_record({"limits": {"requests": kept(bucket.pack())}})["limits"]["requests"]

    assert not {"drained", "full_guard"} & packed.keys()
