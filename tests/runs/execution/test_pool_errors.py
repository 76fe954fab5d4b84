"""Errors of the pool reach the run, even when the worker's SDK wraps them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from agentos import (
    Credential,
    CredentialCoordinator,
    ForeignHost,
    ParallelCoordinator,
    ProgressStats,
    WorkflowResult,
    WouldBlockLoop,
)
from agentos.testing import FakeClock

from ... import background_threads

# By name, so that the type checker does not read the whole of every SDK.
anthropic = import_module("anthropic")
httpx2 = import_module("httpx2")
openai = import_module("openai")

MESSAGES = [{"role": "user", "content": "hello"}]
ANSWERS = {
    "openai": {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "a-model",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "fine"}}],
    },
    "anthropic": {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "a-model",
        "content": [{"type": "text", "text": "fine"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}
Handler = Callable[[Any], Any]
in_either_sdk = pytest.mark.parametrize("sdk", ["openai", "anthropic"])


def ask(sdk: str, handler: Handler) -> str:
    """One call of an SDK whose requests all go to *handler*: openai's lets its errors through, anthropic's does not."""
    with httpx2.Client(transport=httpx2.MockTransport(handler), trust_env=False) as http:
        if sdk == "openai":
            client = openai.OpenAI(api_key="pool", http_client=http, max_retries=0)
            answer = client.chat.completions.create(model="a-model", messages=MESSAGES)
            return str(answer.choices[0].message.content)
        client = anthropic.Anthropic(api_key="pool", http_client=http, max_retries=0)
        return str(client.messages.create(model="a-model", max_tokens=5, messages=MESSAGES).content[0].text)


async def ask_async(handler: Handler) -> str:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(handler), trust_env=False) as http:
        client = anthropic.AsyncAnthropic(api_key="pool", http_client=http, max_retries=0)
        answer = await client.messages.create(model="a-model", max_tokens=5, messages=MESSAGES)
        return str(answer.content[0].text)


class Background(background_threads.Background[tuple[ProgressStats, list[WorkflowResult]]]):
    """A run in a thread of its own."""

    def wait(self, seconds: float) -> None:
        """Until it is over, but no longer than that."""
        self._thread.join(seconds)


class Story:
    """One item, and a pool whose only key rests for thirty seconds. Time stands still until the item waits."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.pool = CredentialCoordinator([Credential("not-a-secret-at-all", name="a")], clock=self.clock, debug=True)
        with self.pool.lease() as lease:
            lease.rate_limited(30)
        self.run = ParallelCoordinator(1, self.pool, lease="call", clock=self.clock, **options)
        self.starts: list[float] = []

    def of(self, worker: Callable[..., Any]) -> tuple[ProgressStats, WorkflowResult]:
        call = Background(lambda: self.run.execute_parallel(["item"], worker, str))
        while call.running:
            call.wait(0.005)
            if self.run.stats is not None and (self.run.stats.limited or self.run.stats.retried):
                self.clock.advance(1.0)
        stats, (result,) = call.result()
        return stats, result

    def start(self) -> None:
        self.starts.append(self.clock.now())

    def leasing(self, sdk: str, timeout: float | None = 0.0) -> Handler:
        """What a transport of the pool does with a request, in short."""

        def handle(_request: Any) -> Any:
            with self.pool.lease(timeout=timeout):
                return httpx2.Response(200, json=ANSWERS[sdk])

        return handle


# -- no key came in time -------------------------------------------------------------------------------------------


@in_either_sdk
def test_an_item_for_which_no_key_came_in_time_is_done_later_and_charged_no_try(sdk: str) -> None:
    story = Story(retries=0)

    def worker(_item: str, _key: None) -> str:
        story.start()
        return ask(sdk, story.leasing(sdk))

    stats, result = story.of(worker)

    assert (result.success, result.value, result.attempts) == (True, "fine", 2)
    assert (stats.limited, stats.retried, stats.failed) == (1, 0, 0)
    first, second = story.starts
    assert second - first >= 30.0


def test_a_coroutine_for_which_no_key_came_in_time_is_done_later_and_charged_no_try() -> None:
    story = Story(retries=0)

    async def worker(_item: str, _key: None) -> str:
        story.start()
        return await ask_async(story.leasing("anthropic"))

    stats, result = story.of(worker)

    assert (result.success, result.value) == (True, "fine")
    assert (stats.limited, stats.retried, len(story.starts)) == (1, 0, 2)


def test_a_rule_of_ones_own_is_not_asked_about_a_key_that_did_not_come_in_time() -> None:
    asked: list[BaseException] = []

    def rule(error: BaseException) -> bool:
        asked.append(error)
        return False

    story = Story(retries=0, retry_if=rule)

    _, result = story.of(lambda _item, _key: ask("anthropic", story.leasing("anthropic")))

    assert result.success
    assert asked == []


# -- no key will do ------------------------------------------------------------------------------------------------


@in_either_sdk
def test_a_call_to_a_foreign_host_fails_its_item_at_once_in_our_words(sdk: str, tmp_path: Path) -> None:
    foreign = ForeignHost(host="elsewhere.example", credentials=("a",), detail="it is not a host of a")
    story = Story(journal=tmp_path / "run")

    def refuse(_request: Any) -> Any:
        raise foreign

    def worker(_item: str, _key: None) -> str:
        story.start()
        return ask(sdk, refuse)

    stats, result = story.of(worker)
    _, recorded = story.of(worker)

    assert (stats.failed, stats.retried, stats.limited, len(story.starts)) == (1, 0, 0, 1)
    assert result.error == recorded.error == str(foreign)
    assert recorded.cached


def test_a_blocking_wait_in_a_coroutine_fails_its_item_at_once_and_says_what_to_use() -> None:
    story = Story()

    async def worker(_item: str, _key: None) -> str:
        return ask("anthropic", story.leasing("anthropic", timeout=None))

    stats, result = story.of(worker)

    assert (stats.failed, stats.retried) == (1, 0)
    assert result.error == str(WouldBlockLoop(instead="async with pool.lease()"))
