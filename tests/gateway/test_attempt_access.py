"""Each attempt of a run has a token of its own, and the wire's verdict on it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agentos.costs.usage_log import UsageLog
from agentos.providers.wire_verdict import WireLog, WireVerdict

from .running import CHAT, Provider, Received, Served, make_pool, provider, serving, wait_until

USAGE = {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}


@pytest.fixture
def upstream() -> Iterator[Provider]:
    with provider(lambda received: received.json(json.dumps(USAGE).encode())) as made:
        yield made


@pytest.fixture
def served(upstream: Provider) -> Iterator[Served]:
    with make_pool(upstream.url) as pool, serving(pool) as made:
        yield made


def refuse(status: int, **error: object) -> object:
    body = json.dumps({"error": error}).encode()
    return lambda received: Received.json(received, body, status=status)


def test_usage_and_records_go_to_the_attempt_that_made_the_call(served: Served) -> None:
    usage_log = UsageLog()
    recorded: list[object] = []
    served.thread.bind(recorded.append)
    access = served.thread.open("item-7", 2, usage_log, "sh")
    token = access.variables["AGENTOS_GATEWAY_TOKEN"]

    assert served.ask(token=token).status == 200
    assert access.close() is None

    used = usage_log.take()
    assert (used["key-1"].input, used["key-1"].output) == (3, 4)
    assert [(each.item, each.attempt, each.key) for each in recorded] == [("item-7", 2, "key-1")]  # type: ignore[attr-defined]


def test_a_token_ends_with_its_attempt_and_so_do_its_requests(served: Served, upstream: Provider) -> None:
    upstream.reply = None
    access = served.thread.open("item", 1, UsageLog(), "sh")
    token = access.variables["AGENTOS_GATEWAY_TOKEN"]
    with served.connect() as client:
        client.send(served.request(token=token))
        sent = upstream.next()

        access.close()

        assert client.is_closed()
        assert sent.is_closed()
    assert served.ask(token=token).status == 401
    assert served.gateway.open_requests == 0


def test_a_program_of_the_tables_gets_its_variables_and_flags(served: Served) -> None:
    codex = served.thread.open("item", 1, UsageLog(), "/usr/bin/codex")
    argv = codex.add_arguments(("/usr/bin/codex", "exec", "x"))
    token = codex.variables["AGENTOS_CREDENTIAL"]

    assert (argv[0], argv[-2:]) == ("/usr/bin/codex", ("exec", "x"))
    assert any(f"{served.url}/v1" in word for word in argv)
    assert not any(token in word for word in argv)
    assert served.ask(token=token).status == 200


@pytest.mark.parametrize(
    ("status", "error", "why"),
    [
        (400, {"message": "prompt is too long"}, "context"),
        (400, {"message": "max_tokens is too large"}, "request"),
        (401, {"code": "invalid_api_key"}, "dead"),
        (429, {"code": "insufficient_quota"}, "spent"),
        (503, {"message": "overloaded"}, "busy"),
    ],
)
def test_the_verdict_says_why_the_last_call_was_refused(
    served: Served, upstream: Provider, status: int, error: dict[str, str], why: str
) -> None:
    access = served.thread.open("item", 1, UsageLog(), "sh")
    token = access.variables["AGENTOS_GATEWAY_TOKEN"]
    served.ask(token=token)
    upstream.reply = refuse(status, **error)  # type: ignore[assignment]
    served.ask(token=token)

    verdict = access.close()

    assert verdict is not None
    assert (verdict.why, verdict.status, verdict.model) == (why, status, "gpt-4o")


def test_a_call_that_succeeds_after_a_refusal_clears_the_verdict(served: Served, upstream: Provider) -> None:
    good, upstream.reply = upstream.reply, refuse(503)  # type: ignore[assignment]
    access = served.thread.open("item", 1, UsageLog(), "sh")
    token = access.variables["AGENTOS_GATEWAY_TOKEN"]
    served.ask(token=token)
    upstream.reply = good
    served.ask(token=token)

    assert access.close() is None


def test_the_main_model_decides_and_calls_that_generate_nothing_do_not() -> None:
    log = WireLog()
    refused = WireVerdict("limited", 429, "big")
    log.add_call("big", 5000, None)
    log.add_call("small", 100, None)
    log.add_call("big", 5000, refused)
    log.add_call("small", 100, None)

    assert log.verdict() == refused
    assert WireLog().verdict() is None


def test_a_client_that_leaves_by_itself_gives_no_verdict(served: Served, upstream: Provider) -> None:
    upstream.reply = None
    access = served.thread.open("item", 1, UsageLog(), "sh")
    with served.connect() as client:
        client.send(served.request(token=access.variables["AGENTOS_GATEWAY_TOKEN"], body=CHAT))
        upstream.next()
    wait_until(lambda: len(served.records) == 1)

    assert access.close() is None
    assert served.records[0].outcome == "left"
