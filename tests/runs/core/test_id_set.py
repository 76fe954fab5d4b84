"""Repeated ids are detected in bounded memory."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.runs.core.id_set import DigestTable, RecentIds
from agentos.util.id_digest import id_digest

SMALLEST, LARGEST = -(2**63), 2**63 - 1
HALVES = st.integers(SMALLEST, LARGEST) | st.integers(-2, 2)


def test_an_id_is_new_once() -> None:
    seen = RecentIds(id_digest)

    assert [seen.add(item) for item in ("a", "b", "a", "", "", "b")] == [True, True, False, True, False, False]


@pytest.mark.parametrize("pair", [("no", "潮"), ("of", "景")])
def test_ids_with_the_same_hash_are_two_ids(pair: tuple[str, str]) -> None:
    """CPython's ``hash`` of a text is that of its buffer: of each pair it is the same."""
    seen = RecentIds(id_digest)

    assert [seen.add(item) for item in (*pair, *pair)] == [True, True, False, False]


def test_ids_of_which_one_half_of_the_digest_is_the_same_are_two_ids() -> None:
    seen = RecentIds({"a": (1, 1), "b": (1, 2), "c": (2, 1)}.__getitem__)

    assert [seen.add(item) for item in "abcabc"] == [True, True, True, False, False, False]


def test_a_digest_of_zeros_is_remembered_too() -> None:
    """Zero marks an empty place in the table."""
    seen = RecentIds(lambda item_id: (0, 0))

    assert seen.add("nought")
    assert not seen.add("nought")


@pytest.mark.parametrize("value", [-1, -2, SMALLEST, LARGEST, 1023, 1024, -1024])
def test_any_digest_will_do(value: int) -> None:
    table = DigestTable()

    assert (value, value) not in table
    assert table.add((value, value))
    assert (value, value) in table
    assert not table.add((value, value))
    assert table.count == 1


@pytest.mark.parametrize("half", [0, 1])
def test_digests_that_want_the_same_place_are_told_apart_also_after_growth(half: int) -> None:
    table = DigestTable(numbers=True)
    numbers = range(1, 700)  # at the very end of the table: they run over to the beginning
    same_place = [((number << 12) | 1023, 5) if half == 0 else (1023, number) for number in numbers]

    assert all(table.add(digest, number) for number, digest in enumerate(same_place))
    assert all(digest in table for digest in same_place)
    assert not any(table.add(digest, -1) for digest in same_place)
    assert [table.number(digest) for digest in same_place] == list(range(699))
    assert (1023, 0) not in table
    assert table.number((1023, 0)) is None
    assert table.count == len(same_place)


@given(st.lists(st.tuples(HALVES, HALVES), max_size=200))
def test_a_table_is_a_map(digests: list[tuple[int, int]]) -> None:
    table, plain = DigestTable(numbers=True), dict[tuple[int, int], int]()
    for number, (first, second) in enumerate(digests):
        digest = (first or 1, second)
        assert table.number(digest) == plain.get(digest)
        assert table.add(digest, number) is (digest not in plain)
        plain.setdefault(digest, number)
        assert table.count == len(plain)


def test_a_table_that_grows_is_still_a_set() -> None:
    r = random.Random(3)
    table, plain = DigestTable(), set[tuple[int, int]]()
    for _ in range(8_000):
        digest = (r.choice([r.getrandbits(64) - 2**63, r.randint(-3000, 3000)]) or 1, r.randint(0, 1))
        assert (digest in table) is (digest in plain)
        assert table.add(digest) is (digest not in plain)
        plain.add(digest)
    assert table.count == len(plain)
    assert len(table._table) >= 4 * len(plain)  # never so full that it would be slow, or endless


def test_at_least_the_last_so_many_are_remembered_and_not_many_more() -> None:
    seen = RecentIds(id_digest, remembered=1000)
    for number in range(10_000):
        assert seen.add(f"item-{number}")
        if number >= 999:
            assert not seen.add(f"item-{number - 999}")  # the thousandth last

    forgotten = sum(seen.add(f"item-{number}") for number in range(7_000))
    assert forgotten == 7_000


def test_the_memory_has_a_bound_however_long_the_input() -> None:
    seen = RecentIds(id_digest, remembered=1000)
    sizes = set()
    for number in range(20_000):
        seen.add(f"item-{number}")
        sizes.add(len(seen._now._table) + (0 if seen._before is None else len(seen._before._table)))

    assert max(sizes) <= 2 * 2 * 4096


@pytest.mark.parametrize(("numbers", "size"), [(False, 32 * 2**20), (True, 48 * 2**20)])
def test_a_million_ids_fit_into_the_memory_it_speaks_of(numbers: bool, size: int) -> None:
    """Two integers of eight bytes a place, or three, and at most half of the places taken."""
    table = DigestTable(numbers=numbers)
    while table.count < 2_000:
        table.add((table.count * 7919 + 1, 0))

    places = len(table._table) // (3 if numbers else 2)
    assert places == 4096
    assert 2**21 * len(table._table) // places * table._table.itemsize == size
