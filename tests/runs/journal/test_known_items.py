from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from agentos.runs.journal import KnownItems, RecordedState
from agentos.runs.journal.known_items import KnownItem
from agentos.util.id_digest import id_digest


class Entries:
    """A table of states together with the ids of the entries it tells of, as a journal has them."""

    def __init__(self, digest: Callable[[str], tuple[int, int]] = id_digest) -> None:
        self.known = KnownItems(digest=digest)
        self.ids: dict[int, str] = {}

    def put(self, item: str, seq: int, state: RecordedState, fingerprint: str | None = None) -> None:
        self.ids[seq] = item
        self.known.put(item, seq, state, fingerprint, self.ids.get)

    def get(self, item: str) -> tuple[int, RecordedState] | None:
        found = self.find(item)
        return found and found[:2]

    def find(self, item: str) -> KnownItem | None:
        (found,) = self.known.find([item], lambda seqs: {seq: self.ids[seq] for seq in seqs})
        return found


def test_the_newest_entry_of_an_item_is_its_state() -> None:
    entries = Entries()
    entries.put("a", 1, RecordedState.RUNNING)
    entries.put("b", 2, RecordedState.RUNNING)

    entries.put("a", 3, RecordedState.DONE)

    assert entries.get("a") == (3, RecordedState.DONE)
    assert entries.get("b") == (2, RecordedState.RUNNING)
    assert entries.get("c") is None
    assert len(entries.known) == 2


def test_counts_follow_the_states() -> None:
    entries = Entries()
    for n, state in enumerate(
        [RecordedState.RUNNING, RecordedState.FAILED, RecordedState.PENDING, RecordedState.DONE], start=1
    ):
        entries.put("a", n, state)
    entries.put("b", 5, RecordedState.PARKED)

    counts = entries.known.counts()

    assert {state: count for state, count in counts.items() if count} == {
        RecordedState.DONE: 1,
        RecordedState.PARKED: 1,
    }


@pytest.mark.parametrize("spread", [1024, 4096, -1024, 0])
def test_items_that_want_the_same_place_are_kept_apart(spread: int) -> None:
    """Every digest leads to the same slot of the first table, and to few of the later ones; with 0 all are equal."""
    entries = Entries(lambda item: (int(item) * spread, 0))
    chance = random.Random(spread)
    expected: dict[str, tuple[int, RecordedState]] = {}
    items, count = (700, 2000) if spread else (60, 200)
    for seq in range(1, count):
        item, state = str(chance.randrange(items)), chance.choice(list(RecordedState))
        entries.put(item, seq, state)
        expected[item] = (seq, state)

    assert {item: entries.get(item) for item in expected} == expected
    assert len(entries.known) == len(expected)
    assert entries.get("701") is None
    assert sum(entries.known.counts().values()) == len(expected)


def test_of_items_whose_digests_are_equal_the_ids_of_the_entries_decide() -> None:
    entries = Entries(lambda item: (len(item), 0))
    entries.put("aa", 1, RecordedState.RUNNING)
    entries.put("bb", 2, RecordedState.FAILED, "00000000000000ff")
    entries.put("aa", 3, RecordedState.DONE)

    assert entries.get("aa") == (3, RecordedState.DONE)
    assert entries.find("bb") == (2, RecordedState.FAILED, "00000000000000ff")
    assert entries.get("cc") is None
    assert [entries.known.state_at("aa", seq) for seq in (1, 3)] == [None, RecordedState.DONE]
    assert entries.known.state_at("bb", 2) is RecordedState.FAILED


def test_only_entries_with_the_same_digest_are_read_and_all_at_once() -> None:
    entries = Entries()
    entries.put("a", 1, RecordedState.DONE)

    asked: list[Sequence[int]] = []

    def ids_at(seqs: Sequence[int]) -> dict[int, str | None]:
        asked.append(seqs)
        return {1: "a"}

    assert entries.known.find(["b", "a", "c"], ids_at) == [None, (1, RecordedState.DONE, None), None]
    assert asked == [[1]]


def test_a_hundred_thousand_items_are_cheap(capsys: pytest.CaptureFixture[str]) -> None:
    known, ids = KnownItems(), dict[int, str]()
    began = time.perf_counter()
    for n in range(1, 100_001):
        known.put(f"item-{n}", n, RecordedState.DONE, None, ids.get)
    took = time.perf_counter() - began
    tracemalloc.start()
    known._grow()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    with capsys.disabled():
        sys.stdout.write(f"\n[known] 100,000 items: {took:.3f} s; twice the table: {size / 1e6:.1f} MB\n")

    assert len(known) == 100_000
    assert known.find(["item-77"], lambda seqs: {seq: f"item-{seq}" for seq in seqs}) == [
        (77, RecordedState.DONE, None)
    ]
