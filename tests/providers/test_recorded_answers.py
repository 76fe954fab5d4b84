"""Answers as the providers give them, one file each: what every one of them means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentos.providers import Event, Reading, Signal, classify
from agentos.providers.dialects import DIALECTS

ANSWERS = sorted((Path(__file__).parent / "answers").glob("*.json"))


def recorded(path: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(path.read_text())
    return answer


def read(answer: dict[str, Any], **changed: object) -> Signal:
    call = {**answer["call"], **changed}
    status, headers, body = (call.pop(name) for name in ("status", "headers", "body"))
    return classify(status, headers, body, now=answer["now"], **call)


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_an_answer_means_what_its_provider_means(path: Path) -> None:
    answer = recorded(path)
    expected = answer["expect"]

    signal = read(answer)

    assert signal.event is Event[expected["event"]], signal
    assert signal.status == answer["call"]["status"]
    assert signal.evidence[-1] == f"status {signal.status}"
    if "delay" in expected:
        told = expected["delay"]
        assert signal.delay == (None if told is None else pytest.approx(told)), signal.why
    if "dimensions" in expected:
        assert list(signal.dimensions) == expected["dimensions"]
    if "readings" in expected:
        assert [numbers(reading) for reading in signal.readings] == [
            pytest.approx({"spent": None, **reading}) for reading in expected["readings"]
        ]
    for name in ("provider", "organisation", "model", "scoped", "usage"):
        if name in expected:
            assert getattr(signal, name) == expected[name]


def numbers(reading: Reading) -> dict[str, object]:
    names = ("dimension", "limit", "remaining", "resets_in", "window", "spent")
    return {name: getattr(reading, name) for name in names}


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_the_provider_is_in_the_name_of_the_file(path: Path) -> None:
    assert read(recorded(path)).provider == path.stem.split("-")[0]


def test_every_provider_has_answers() -> None:
    assert {path.stem.split("-")[0] for path in ANSWERS} == set(DIALECTS)


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_the_client_s_way_of_keeping_an_answer_does_not_matter(path: Path) -> None:
    answer = recorded(path)
    headers, body = answer["call"]["headers"], answer["call"]["body"]
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    text = body if isinstance(body, str) or body is None else json.dumps(body)

    signal = read(answer)

    for changed in (
        {"headers": [(name.upper(), value) for name, value in pairs]},
        {"headers": [(name.encode(), value.encode()) for name, value in pairs]},
        {"headers": iter(pairs)},
        {"body": text},
        {"body": None if text is None else text.encode()},
        {"body": None if text is None else f"\ufeff\n {text}".encode()},
    ):
        assert read(answer, **changed) == signal
