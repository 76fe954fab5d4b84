"""Usage: one value for the tokens of any provider."""

from __future__ import annotations

import json
import math

import pytest

import agentos
from agentos.costs import Usage

ONE = Usage(input=100, output=40, cache_read=2_000, cache_write=30, reasoning=15)


def test_usages_of_several_calls_add_up_by_kind() -> None:
    assert ONE + Usage(input=1, output=2, cache_read=3, cache_write=4, reasoning=5) == Usage(101, 42, 2_003, 34, 20)


def test_the_total_counts_reasoning_once_because_it_is_part_of_the_output() -> None:
    assert ONE.total == 100 + 40 + 2_000 + 30


def test_a_usage_without_tokens_is_false() -> None:
    assert not Usage()
    assert Usage(cache_read=1)


def test_a_usage_survives_json() -> None:
    assert Usage.from_json(json.loads(json.dumps(ONE.to_json()))) == ONE


@pytest.mark.parametrize(
    "figures", [None, [], "many", {"input": "7"}, {"input": -1}, {"input": True}, {"input": math.nan}]
)
def test_json_that_is_no_usage_counts_as_nothing(figures: object) -> None:
    assert Usage.from_json(figures) == Usage()


def test_the_package_exports_usage() -> None:
    assert agentos.Usage is Usage
