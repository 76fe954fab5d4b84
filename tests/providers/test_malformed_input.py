"""Whatever comes: never an exception, never a wait for ever, never a secret in what is told."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.providers import Event, Signal, classify
from agentos.providers.classify import _classify
from agentos.providers.signal import LONGEST_DELAY

NOW = 1_800_014_400.0
ANSWERS = [json.loads(path.read_text())["call"] for path in sorted((Path(__file__).parent / "answers").glob("*.json"))]

# As a whole and in its parts: neither may show.
SECRET = "sk-planted-7Qx9ZkV2mB4"
PART = "7Qx9ZkV2"

NAMES = [
    *("retry-after", "retry-after-ms", "x-ms-retry-after-ms", "x-should-retry", "date", "content-type"),
    *("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    *("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "x-ratelimit-reset"),
    *("anthropic-ratelimit-requests-reset", "anthropic-ratelimit-unified-status", "anthropic-organization-id"),
    *("anthropic-ratelimit-unified-5h-reset", "anthropic-ratelimit-unified-5h-utilization"),
    *("anthropic-ratelimit-unified-representative-claim", "x-tokenlimit-remaining", "x-ratelimit-resource"),
    *("RateLimit", "RateLimit-Policy", "RateLimit-Limit", "RateLimit-Reset", "x-amzn-errortype", "openai-version"),
    *("x-ratelimit-tokens-query-cost", "x-ratelimit-remaining-" + PART, "\udcff", "", "x" * 500),
]
VALUES: list[object] = [
    *("0", "5", "-1", "0.5", "6m0s", "12ms", "1d", "36d", "1800014430", "1800014430000", "nan", "inf", "-5", "1e9"),
    *("Fri, 15 Jan 2027 12:00:30 GMT", "2027-01-15T12:00:30Z", "Friday, 15-Jan-27 12:00:30 GMT", "rejected", "false"),
    *(
        '"a";r=0;t=30',
        '"a";q=10;w=60',
        "limit=1, remaining=0, reset=5",
        "100, 100;w=60",
        "ThrottlingException:http://x",
    ),
    *(SECRET, f"20 {SECRET}", f"Fri, 15 Jan 2027 12:00:30 {SECRET}", f'"{SECRET}";r=0;t=30', "9" * 400, "\ud800", "٣"),
    *(b"20", b"\xff\xfe", 20, 10**30, float("nan"), -1, True, None, ["1", "2"], {"a": 1}, object()),
]
LEAVES: list[object] = [
    *(None, True, 0, -1, 429, 10**400, 1.5, float("inf"), float("nan"), "", "0", "58s", "tokens", "requests", "\ud800"),
    *("rate_limit_exceeded", "insufficient_quota", "invalid_api_key", "RESOURCE_EXHAUSTED", "slow_down", SECRET),
    *(
        f"Incorrect API key provided: {SECRET}.",
        "Limit 10, Used 5, Requested 20",
        "Please try again in 2.05s",
        "limit: 0",
    ),
    *(f"Please retry in 5s {SECRET}", "per day", f"https://x/{SECRET}#{SECRET}", "9" * 400, "wait 99999999999 days"),
]
KEYS = [
    *("error", "Error", "code", "type", "status", "message", "details", "metadata", "headers", "violations", "usage"),
    *("quotaId", "quotaValue", "quotaDimensions", "retryDelay", "reason", "model", "choices", "response", "detail"),
    *(
        "X-RateLimit-Reset",
        "violated-policies",
        "usageMetadata",
        "prompt_tokens",
        "innererror",
        "seconds",
        "raw",
        SECRET,
    ),
]
STATUSES = [
    None,
    0,
    100,
    200,
    200,
    304,
    400,
    401,
    402,
    403,
    404,
    413,
    429,
    429,
    429,
    500,
    503,
    529,
    10**30,
    "429",
    True,
]
URLS = [
    None,
    "https://api.openai.com",
    "https://aiplatform.googleapis.com",
    f"https://{SECRET}@x/",
    "::::",
    "\ud800",
    5,
]
PROVIDERS = [None, None, "openai", "azure", "anthropic", "gemini", "github", "openrouter", "bedrock", SECRET, 5]


def check(signal: Signal, case: object) -> None:
    assert isinstance(signal.event, Event), case
    assert signal.delay is None or 0 <= signal.delay <= LONGEST_DELAY, case
    told = signal.why
    assert PART not in told, case
    assert told.isascii(), case
    assert all(len(evidence) <= 160 for evidence in signal.evidence), case
    for reading in signal.readings:
        assert reading.dimension in ("requests", "tokens", "input_tokens", "output_tokens"), case
        assert reading.resets_in is None or 0 <= reading.resets_in <= LONGEST_DELAY, case
        for number in (reading.limit, reading.remaining, reading.window, reading.spent):
            assert number is None or 0 <= number < 1e21, case


def junk_body(chance: random.Random, depth: int = 0) -> object:
    if depth > 4 or chance.random() < 0.3:
        return chance.choice(LEAVES)
    if chance.random() < 0.3:
        return [junk_body(chance, depth + 1) for _ in range(chance.randrange(3))]
    return {chance.choice(KEYS): junk_body(chance, depth + 1) for _ in range(chance.randrange(1, 5))}


def junk_headers(chance: random.Random) -> object:
    pairs = [(chance.choice(NAMES), chance.choice(VALUES)) for _ in range(chance.randrange(8))]
    return chance.choice((dict, list, iter, tuple))(pairs)


def changed_text(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text) + 1)
    return chance.choice((text[:at], text[at:], text[:at] + SECRET + text[at:], text[:at] + text[at + 1 :], text * 2))


def changed_body(chance: random.Random, body: object) -> object:
    """The body of a real answer with something cut, swapped, grown or planted in it."""
    how = chance.randrange(4)
    if how == 0 and body is not None:
        text = body if isinstance(body, str) else json.dumps(body)
        return changed_text(chance, text).encode("utf-8", "replace")
    if how == 1:
        return body
    return _swapped(chance, body)


def _swapped(chance: random.Random, value: object) -> object:
    if chance.random() < 0.15:
        return chance.choice(LEAVES)
    if isinstance(value, dict):
        return {key: _swapped(chance, inner) for key, inner in value.items() if chance.random() > 0.05}
    if isinstance(value, list):
        return [_swapped(chance, inner) for inner in value for _ in range(chance.randrange(1, 3))]
    return changed_text(chance, value) if isinstance(value, str) and chance.random() < 0.3 else value


def changed_headers(chance: random.Random, headers: object) -> object:
    pairs: list[Any] = list(headers.items()) if isinstance(headers, dict) else list(headers)  # type: ignore[call-overload]
    for _ in range(chance.randrange(4)):
        name = chance.choice(pairs)[0] if pairs else chance.choice(NAMES)
        pairs.insert(chance.randrange(len(pairs) + 1), (name, chance.choice(VALUES)))
    if pairs and chance.random() < 0.3:
        pairs.pop(chance.randrange(len(pairs)))
    return pairs


def random_bytes(chance: random.Random) -> object:
    beginning = chance.choice((b"", b"{", b"[{", b"event: error\ndata: {", b'data: {"error": ', b"<html>"))
    return beginning + chance.randbytes(chance.randrange(60))


def from_nothing(chance: random.Random) -> dict[str, Any]:
    body = random_bytes(chance) if chance.random() < 0.2 else junk_body(chance)
    if chance.random() < 0.2 and not isinstance(body, bytes):
        body = json.dumps(body)
    return {
        "status": chance.choice(STATUSES),
        "headers": junk_headers(chance),
        "body": body,
        "provider": chance.choice(PROVIDERS),
        "url": chance.choice(URLS),
        "model": chance.choice((None, "some-model", 5)),
    }


def from_a_real_answer(chance: random.Random) -> dict[str, Any]:
    call = dict(chance.choice(ANSWERS))
    call["headers"] = changed_headers(chance, call["headers"])
    call["body"] = changed_body(chance, call["body"])
    if chance.random() < 0.2:
        call["status"] = chance.choice(STATUSES)
    return call


@pytest.mark.parametrize("make", [from_nothing, from_a_real_answer])
@pytest.mark.parametrize("seed", range(5))
def test_junk_never_raises_never_waits_for_ever_and_never_shows_a_secret(
    make: Callable[[random.Random], dict[str, Any]], seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(10_000):
        call = make(chance)
        status, headers, body = (call.pop(name) for name in ("status", "headers", "body"))

        signal = classify(status, headers, body, now=NOW, **call)

        check(signal, (make.__name__, seed, number))


@pytest.mark.parametrize("make", [from_nothing, from_a_real_answer])
def test_plain_data_never_needs_the_last_resort(make: Callable[[random.Random], dict[str, Any]]) -> None:
    """What catches everything is for objects that fail, not for faults of ours."""
    chance = random.Random(2)
    for _ in range(2000):
        call = make(chance)
        status = call["status"] if isinstance(call["status"], int) else None

        _classify(status, NOW, call["headers"], call["body"], call.get("provider"), call.get("url"), None)


def test_the_junk_is_not_only_junk() -> None:
    """A generator whose answers all meant the same would prove nothing."""
    chance = random.Random(1)
    events = set()
    for _ in range(5000):
        call = from_a_real_answer(chance)
        status, headers, body = (call.pop(name) for name in ("status", "headers", "body"))
        events.add(classify(status, headers, body, now=NOW, **call).event)

    assert events == set(Event)


class Hostile:
    """Fails at everything a client's object may be asked."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(SECRET)

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError(SECRET)


class HostileDict(dict[str, Any]):
    def get(self, *_: object) -> Any:
        raise RuntimeError(SECRET)

    __getitem__ = __contains__ = items = get


def cycle() -> dict[str, Any]:
    body: dict[str, Any] = {"message": "x"}
    body["error"] = body["details"] = body["metadata"] = body["headers"] = body
    return body


HOSTILE: dict[str, Callable[[], Any]] = {
    "an object that fails": Hostile,
    "a dict that fails": lambda: HostileDict(error=1),
    "a cycle": cycle,
    "an object": object,
    "a body of failing fields": lambda: {"error": Hostile(), "usage": Hostile(), "model": Hostile()},
    "an error of failing fields": lambda: {"error": {"message": Hostile(), "code": Hostile(), "details": [Hostile()]}},
    "a list of failing objects": lambda: [Hostile()],
    "deep lists": lambda: "[" * 60_000,
    "deep objects": lambda: '{"error":' * 7_000,
    "half a character": lambda: "\ud800" * 100,
    "a million zeros": lambda: b"\x00" * 1_000_000,
    "a stream without events": lambda: "data: " * 100_000,
    "a stream of broken errors": lambda: 'event: error\ndata: {"error":\n\n' * 10_000,
    "a huge number": lambda: 10**5000,
    "a generator": lambda: (character for character in string.printable),
}


@pytest.mark.parametrize("status", [None, 200, 403, 429, 500])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_object_of_a_client_can_make_it_raise(status: int | None, hostile: str) -> None:
    make = HOSTILE[hostile]

    for signal in (
        classify(status, None, make(), now=NOW),
        classify(status, make(), None, now=NOW),
        classify(status, {"retry-after": make(), "date": make()}, make(), now=NOW),
        classify(status, None, None, now=NOW, url=make(), provider=make(), model=make()),
    ):
        check(signal, hostile)
        assert signal.status == status


def test_a_failing_object_leaves_the_rest_to_decide() -> None:
    signal = classify(429, {"retry-after": "5"}, HostileDict(error=1), now=NOW)

    assert (signal.event, signal.status, signal.delay) == (Event.LIMITED, 429, 5.0)
    assert classify(429, Hostile(), Hostile(), now=NOW).event is Event.LIMITED
    assert classify(Hostile(), None, None, now=NOW).event is Event.NETWORK  # type: ignore[arg-type]


@pytest.mark.parametrize("now", [0.0, -1e18, 1e18, float("nan"), float("inf")])
def test_an_absurd_clock_does_no_harm(now: float) -> None:
    for call in ANSWERS:
        known = {name: value for name, value in call.items() if name not in ("status", "headers", "body")}

        check(classify(call["status"], call["headers"], call["body"], now=now, **known), call)


def test_a_message_is_never_quoted() -> None:
    for status in (200, 400, 401, 403, 404, 429, 500):
        for code in (SECRET, "rate_limit_exceeded", None):
            body = {"error": {"message": f"{SECRET}: the key {SECRET} is invalid", "code": code, "type": SECRET}}
            headers = {"openai-organization": "org-example", "x-amzn-errortype": SECRET, "retry-after": SECRET}

            signal = classify(status, headers, body, now=NOW, model="some-model")

            assert PART not in repr(signal)
