"""User objects become plain values that every process can unpickle."""

from __future__ import annotations

from collections import UserDict
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from agentos import Event, Signal
from agentos.providers.signal import Reading
from agentos.runs.remote.plain_values import to_plain


class Word(StrEnum):
    TOKENS = "tokens"


class Count(IntEnum):
    THREE = 3


class Share(float): ...


class Mine(Signal):
    """Of a class that is not known at home."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Word.TOKENS, "tokens"),
        (Count.THREE, 3),
        (Share(0.5), 0.5),
        (UserDict({Word.TOKENS: Share(2.5)}), {"tokens": 2.5}),
        ((Word.TOKENS, None, True), ("tokens", None, True)),
        (Event.LIMITED, Event.LIMITED),
        (object(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classes_of_the_users_own_are_taken_off(given: Any, expected: Any) -> None:
    made = to_plain(given)

    assert made == expected
    assert type(made) is type(expected)


def test_of_what_is_in_them_too() -> None:
    made = to_plain(({Word.TOKENS: 1},))

    assert [type(name) for name in made[0]] == [str]


def test_a_signal_subclass_becomes_a_signal_with_all_its_fields() -> None:
    reading = Reading("tokens", 10.0, 3.0, 5.0, 60.0, "a header", 0.7)
    facts: dict[str, Any] = {
        "delay": 3.0,
        "dimensions": ("tokens",),
        "evidence": ("it",),
        "status": 429,
        "scoped": True,
    }

    made = to_plain(Mine(Event.LIMITED, model=Word.TOKENS, readings=(reading,), usage={"tokens": 1.0}, **facts))

    assert made == Signal(Event.LIMITED, model="tokens", readings=(reading,), usage={"tokens": 1.0}, **facts)
    assert (type(made), type(made.model)) == (Signal, str)
