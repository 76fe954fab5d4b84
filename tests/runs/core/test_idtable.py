"""Ids that come again are noticed, in a bounded piece of memory."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.runs._core.idtable import SeenIds, _Generation

SMALLEST, LARGEST = -(2**63), 2**63 - 1


class Named(str):
    """An id with a hash of the test's choice."""

    __slots__ = ("_hash",)
    _hash: int

    def __new__(cls, text: str, value: int) -> Named:
        named = super().__new__(cls, text)
        named._hash = value
        return named

    def __hash__(self) -> int:
        return self._hash


def test_an_id_is_new_once() -> None:
    seen = SeenIds()

    assert [seen.add(item) for item in ("a", "b", "a", "", "", "b")] == [True, True, False, True, False, False]


def test_an_id_whose_hash_is_zero_is_remembered_too() -> None:
    """Zero marks an empty place in the table."""
    seen = SeenIds()

    assert seen.add(Named("nought", 0))
    assert not seen.add(Named("nought", 0))


@pytest.mark.parametrize("value", [-1, -2, SMALLEST + 1, LARGEST, 1023, 1024, -1024])
def test_any_hash_will_do(value: int) -> None:
    table = _Generation()

    assert not table.has(value)
    assert table.add(value)
    assert table.has(value)
    assert not table.add(value)
    assert table.count == 1


def test_hashes_that_want_the_same_place_are_told_apart_also_after_growth() -> None:
    table = _Generation()
    same_place = [(number << 12) | 1023 for number in range(1, 700)]  # at the very end: they run over to the beginning

    assert all(table.add(key) for key in same_place)
    assert len(table.table) > 1024
    assert all(table.has(key) for key in same_place)
    assert not any(table.add(key) for key in same_place)
    assert not table.has(1023)
    assert table.count == len(same_place)


@given(st.lists(st.integers(SMALLEST, LARGEST).filter(bool), max_size=200))
def test_a_table_is_a_set(keys: list[int]) -> None:
    table, plain = _Generation(), set[int]()
    for key in keys:
        assert table.add(key) is (key not in plain)
        plain.add(key)
        assert table.count == len(plain)


def test_a_table_that_grows_is_still_a_set() -> None:
    r = random.Random(3)
    table, plain = _Generation(), set[int]()
    for _ in range(8_000):
        key = r.choice([r.getrandbits(64) - 2**63, r.randint(-3000, 3000)]) or 1
        assert table.has(key) is (key in plain)
        assert table.add(key) is (key not in plain)
        plain.add(key)
    assert table.count == len(plain)
    assert sorted(key for key in table.table if key) == sorted(plain)
    assert len(table.table) >= 2 * len(plain)  # never so full that it would be slow, or endless


def test_at_least_the_last_so_many_are_remembered_and_not_many_more() -> None:
    seen = SeenIds(remembered=1000)
    for number in range(10_000):
        assert seen.add(f"item-{number}")
        if number >= 999:
            assert not seen.add(f"item-{number - 999}")  # the thousandth last

    forgotten = sum(seen.add(f"item-{number}") for number in range(7_000))
    assert forgotten == 7_000


def test_the_memory_has_a_bound_however_long_the_input() -> None:
    seen = SeenIds(remembered=1000)
    sizes = set()
    for number in range(20_000):
        seen.add(f"item-{number}")
        sizes.add(len(seen._now.table) + (0 if seen._before is None else len(seen._before.table)))

    assert max(sizes) <= 2 * 4096


def test_a_million_ids_fit_into_the_memory_it_speaks_of() -> None:
    """Sixteen megabytes for a million: eight bytes a place, at most half of them taken."""
    table = _Generation()
    while len(table.table) < 4096:
        table.add(len(table.table) * 7919 + table.count)

    assert table.table.itemsize == 8
    assert 2**21 * table.table.itemsize == 16 * 2**20
