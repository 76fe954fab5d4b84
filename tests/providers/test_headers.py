"""Headers in any of the shapes that clients keep them in."""

from __future__ import annotations

import email.message
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from agentos.providers import classify
from agentos.providers.answers.headers import REPEATED, parse_headers

from ..parameter_ids import named

NOW = 1_800_000_000.0


def delay(headers: object) -> float | None:
    return classify(429, headers, None, now=NOW).delay


class WithItems:
    """Like the headers of requests and aiohttp."""

    def items(self) -> list[tuple[str, str]]:
        return [("Retry-After", "20")]


class WithMultiItems(WithItems):
    """Like the headers of httpx: ``items`` joins what ``multi_items`` keeps apart."""

    def items(self) -> list[tuple[str, str]]:
        return [("Retry-After", ", ".join(value for _, value in self.multi_items()))]

    def multi_items(self) -> list[tuple[str, str]]:
        return [("Retry-After", "junk"), ("Retry-After", "Fri, 15 Jan 2027 08:00:20 GMT")]


class Name(str):
    """Like the names of multidict."""

    __slots__ = ()


class Broken:
    def items(self) -> Iterator[tuple[object, object]]:
        yield "retry-after", "20"
        raise OSError("the connection is gone")


def message() -> email.message.Message:
    headers = email.message.Message()
    headers["Retry-After"] = "20"
    return headers


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "20"},
        {"RETRY-AFTER": "20"},
        {"Retry-After": b"20"},
        {b"Retry-After": b"20"},
        {" Retry-After ": " 20 "},
        {"Retry-After": 20},
        {"Retry-After": ["20"]},
        {Name("Retry-After"): Name("20")},
        [("Retry-After", "20")],
        (("Retry-After", "20"),),
        [["Retry-After", "20"]],
        [(b"retry-after", b"20")],
        WithItems(),
        WithMultiItems(),
        message(),
        Broken(),
        [None, 5, "x", ("too", "many", "parts"), ("Retry-After", "20")],
    ],
    ids=named,
)
def test_the_shape_of_the_headers_does_not_matter(headers: object) -> None:
    assert delay(headers) == 20.0


def test_a_generator_of_pairs_is_read() -> None:
    assert delay(pair for pair in [("Retry-After", "20")]) == 20.0


def test_a_generator_without_end_is_left_in_time() -> None:
    def endless() -> Iterator[tuple[str, str]]:
        while True:
            yield "retry-after", "20"

    assert delay(endless()) == 20.0


@pytest.mark.parametrize("headers", [None, {}, [], 5, object(), "retry-after: 20", b"junk", {"retry-after": object()}])
def test_what_is_no_headers_says_nothing(headers: object) -> None:
    assert delay(headers) is None


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["5", "10"], 10.0),
        (["5", "junk"], 5.0),
        (["5, 10"], 10.0),
        (["junk", "Fri, 15 Jan 2027 08:00:30 GMT"], 30.0),
        (["Fri, 15 Jan 2027 08:00:30 GMT", "junk"], 30.0),
    ],
)
def test_of_a_repeated_header_the_last_valid_value_counts(values: list[str], seconds: float) -> None:
    assert delay([("Retry-After", value) for value in values]) == seconds


def test_of_a_repeated_count_the_last_valid_value_counts() -> None:
    headers = [("x-ratelimit-remaining-tokens", value) for value in ("7", "5", "-1", "few")]

    (reading,) = classify(200, headers, None, now=NOW).readings

    assert reading.remaining == 5.0


def test_only_what_tells_something_is_kept() -> None:
    fields, dialect = parse_headers({"Set-Cookie": "secret", "Authorization": "secret", "Date": "x", "date": "y"})

    assert fields == {"date": f"x{REPEATED}y"}
    assert dialect is None


def test_a_spelling_with_one_more_hyphen_is_the_same_header() -> None:
    (reading,) = classify(200, {"X-Rate-Limit-Remaining": "3"}, None, now=NOW).readings

    assert (reading.dimension, reading.remaining) == ("requests", 3.0)


def _of_real_clients() -> Iterator[Any]:
    pairs = [("RateLimit", '"a";r=1;t=5'), ("RateLimit", '"b";r=0;t=9'), ("Retry-After", "5"), ("retry-after", "7")]
    for module, make in (
        ("httpx", lambda lib: lib.Headers(pairs)),
        ("multidict", lambda lib: lib.CIMultiDict(pairs)),
        ("multidict", lambda lib: lib.CIMultiDictProxy(lib.CIMultiDict(pairs))),
        ("urllib3", lambda lib: lib.HTTPHeaderDict(pairs)),
    ):
        yield pytest.param(module, make, id=module)


@pytest.mark.parametrize(("module", "make"), list(_of_real_clients()))
def test_the_headers_of_real_clients_are_read_with_what_is_repeated(module: str, make: Any) -> None:
    headers = make(import_module(module))

    signal = classify(429, headers, None, now=NOW)

    assert signal.delay == 7.0
    assert [reading.remaining for reading in signal.readings] == [1.0, 0.0]


def test_the_headers_of_requests_are_read() -> None:
    structures = import_module("requests.structures")

    assert delay(structures.CaseInsensitiveDict({"RETRY-After": "20"})) == 20.0
