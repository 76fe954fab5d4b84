from __future__ import annotations

import random
import sys
import time
import tracemalloc

import pytest

from agentos.runs.journal import Known, State


def test_the_newest_entry_of_an_item_is_its_state() -> None:
    known = Known()
    known.put("a", 1, State.RUNNING)
    known.put("b", 2, State.RUNNING)

    known.put("a", 3, State.DONE)

    assert known.get("a") == (3, State.DONE)
    assert known.get("b") == (2, State.RUNNING)
    assert known.get("c") is None
    assert len(known) == 2


def test_counts_follow_the_states() -> None:
    known = Known()
    for n, state in enumerate([State.RUNNING, State.FAILED, State.PENDING, State.DONE], start=1):
        known.put("a", n, state)
    known.put("b", 5, State.PARKED)

    counts = known.counts()

    assert {state: count for state, count in counts.items() if count} == {State.DONE: 1, State.PARKED: 1}


@pytest.mark.parametrize("spread", [1024, 4096, -1024])
def test_items_that_want_the_same_place_are_kept_apart(spread: int) -> None:
    """Every hash leads to the same slot of the first table, and to few of the later ones."""
    known = Known(hash_of=lambda item: int(item) * spread)
    chance = random.Random(spread)
    expected: dict[str, tuple[int, State]] = {}
    for seq in range(1, 2000):
        item, state = str(chance.randrange(700)), chance.choice(list(State))
        known.put(item, seq, state)
        expected[item] = (seq, state)

    assert {item: known.get(item) for item in expected} == expected
    assert len(known) == len(expected)
    assert known.get("701") is None


def test_of_two_items_with_one_hash_the_later_is_known_so_a_hit_must_be_verified() -> None:
    known = Known(hash_of=len)
    known.put("aa", 1, State.DONE)
    known.put("bb", 2, State.FAILED)

    assert known.get("aa") == known.get("bb") == (2, State.FAILED)
    assert len(known) == 1


def test_a_hundred_thousand_items_are_cheap(capsys: pytest.CaptureFixture[str]) -> None:
    known = Known()
    began = time.perf_counter()
    for n in range(1, 100_001):
        known.put(f"item-{n}", n, State.DONE)
    took = time.perf_counter() - began
    tracemalloc.start()
    known._grow()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    with capsys.disabled():
        sys.stdout.write(f"\n[known] 100,000 items: {took:.3f} s; twice the table: {size / 1e6:.1f} MB\n")

    assert len(known) == 100_000
    assert known.get("item-77") == (77, State.DONE)
