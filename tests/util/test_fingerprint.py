"""The same item has the same fingerprint in every process; a changed one has another."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.util.fingerprint import fingerprint

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: Any, r: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        r.shuffle(keys)
        return {key: shuffled(value[key], r) for key in keys}
    return [shuffled(inner, r) for inner in value] if isinstance(value, list) else value


@given(JSON, st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(value: Any, r: random.Random) -> None:
    assert fingerprint(shuffled(value, r)) == fingerprint(value)


@given(JSON)
def test_an_item_read_back_from_json_is_the_same(value: Any) -> None:
    found = fingerprint(value)

    assert found is not None
    assert len(found) == 16
    assert fingerprint(json.loads(json.dumps(value))) == found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, "1"),
        (1, 1.0),
        (None, "null"),
        (True, 1),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": None}),
        ("a", "a "),
        ("\ud800", "\ud801"),
    ],
)
def test_a_changed_item_has_another(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_a_tuple_is_a_list_as_in_json() -> None:
    assert fingerprint((1, 2)) == fingerprint([1, 2])


def test_not_a_number_has_one_too() -> None:
    assert fingerprint(float("nan")) == fingerprint(float("nan")) is not None


def endless() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def deep() -> list[Any]:
    items: list[Any] = []
    for _ in range(100_000):
        items = [items]
    return items


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", {"a": object()}, {(1, 2): 3}, 1j, endless(), deep()])
def test_what_is_not_json_has_none(value: Any) -> None:
    assert fingerprint(value) is None


def test_keys_of_kinds_that_cannot_be_sorted_have_none() -> None:
    assert fingerprint({1: "a", "b": 2}) is None


@pytest.mark.parametrize("hash_seed", ["0", "1", "12345"])
def test_another_process_with_another_hash_seed_finds_the_same(hash_seed: str) -> None:
    code = (
        "from agentos.util.fingerprint import fingerprint\n"
        "print(fingerprint({'b': [1, 2.5, None], 'a': {'y': 'ü', 'x': True}}))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert said.stdout.strip() == fingerprint({"a": {"x": True, "y": "ü"}, "b": [1, 2.5, None]})


def test_the_fingerprint_of_a_journal_written_long_ago_still_holds() -> None:
    """Changing how it is made would take every item of every journal for a changed one."""
    assert fingerprint({"b": [1, 2.5, None], "a": "ü"}) == "f1184f5ca494414e"
