"""The items of a run use the credentials of one provider. No key in here was ever issued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from agentos import Command, Credential, CredentialCoordinator, ParallelCoordinator

OPENAI = [Credential(f"sk-proj-made-up-{number}", name=f"openai-{number}") for number in (1, 2)]
ANTHROPIC = Credential("sk-ant-made-up", name="claude")
SILENT = Credential("made-up-key", name="silent")


def secret_of(_item: int, key: str) -> str:
    return key


def used(pool: CredentialCoordinator, worker: Callable[..., Any] = secret_of, **options: Any) -> set[str | None]:
    """The names of the credentials that served six items."""
    _, results = ParallelCoordinator(6, pool, **options).execute_parallel(range(6), worker, str)
    assert [result.error for result in results] == [None] * 6
    return {result.credential for result in results}


def test_the_chosen_provider_serves_all_items() -> None:
    pool = CredentialCoordinator([*OPENAI, ANTHROPIC, SILENT], debug=True)

    assert used(pool, provider="openai") <= {"openai-1", "openai-2"}
    assert used(pool, provider="anthropic") == {"claude"}
    assert used(pool, provider="any") <= {"openai-1", "openai-2", "claude", "silent"}


def test_the_choice_holds_for_models_costs_and_coroutines() -> None:
    pool = CredentialCoordinator([*OPENAI, ANTHROPIC])

    async def ask(_item: int, key: str) -> str:
        await asyncio.sleep(0)
        return key

    assert used(pool, provider="anthropic", model_func=lambda _: "m", cost_func=lambda _: {"tokens": 9}) == {"claude"}
    assert used(pool, ask, provider="anthropic") == {"claude"}


def test_an_open_choice_is_refused_before_anything_runs_with_the_words_to_write() -> None:
    pool = CredentialCoordinator([*OPENAI, ANTHROPIC])
    ran: list[int] = []

    def worker(item: int, _key: str) -> None:
        ran.append(item)

    with pytest.raises(ValueError, match="credentials of several providers") as caught:
        ParallelCoordinator(2, pool).execute_parallel(range(3), worker, str)

    assert str(caught.value) == (
        "the pool has credentials of several providers (openai: openai-1, openai-2; anthropic: claude), and an item "
        'gets any of them: choose one with provider="openai", or lease for each call with lease="call"; provider="any" '
        "is for workers that look at their key"
    )
    assert ran == []


@pytest.mark.parametrize("credentials", [OPENAI, [ANTHROPIC], [SILENT, Credential("made-up-too")]])
def test_one_provider_and_keys_that_say_nothing_need_no_choice(credentials: list[Credential]) -> None:
    assert used(CredentialCoordinator(credentials))


def test_a_credential_without_a_provider_beside_others_leaves_the_choice_open() -> None:
    with pytest.raises(ValueError, match="unknown: silent"):
        used(CredentialCoordinator([ANTHROPIC, SILENT]))


def test_leases_for_each_call_may_mix() -> None:
    pool = CredentialCoordinator([*OPENAI, ANTHROPIC])

    def worker(_item: int, _key: None) -> str:
        with pool.lease() as lease:
            return lease.name

    assert used(pool, worker, lease="call") == {None}


def test_a_transport_sends_each_key_to_the_host_of_its_provider_only() -> None:
    pool = CredentialCoordinator([*OPENAI, ANTHROPIC])
    seen: set[tuple[str, str]] = set()

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.add((request.url.host, request.headers["x-api-key"].rstrip("12")))
        return httpx2.Response(200, json={})

    with httpx2.Client(transport=pool.transport(httpx2.MockTransport(answer))) as client:

        def worker(item: int, _key: None) -> int:
            host = ("api.openai.com", "api.anthropic.com")[item % 2]
            return client.post(f"https://{host}/v1/messages", headers={"x-api-key": "pool"}).status_code

        used(pool, worker, lease="call")

    assert seen == {("api.openai.com", "sk-proj-made-up-"), ("api.anthropic.com", "sk-ant-made-up")}


def test_commands_use_the_chosen_provider() -> None:
    pool = CredentialCoordinator([*OPENAI, ANTHROPIC])

    with pytest.raises(ValueError, match="several providers"):
        used(pool, Command(["true"]))  # type: ignore[arg-type]
    assert used(pool, Command(["true"]), provider="anthropic") == {"claude"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        (
            "groq",
            "provider: no credential of the pool is one of groq; they are of openai: openai-1, openai-2; anthropic",
        ),
        ("opnai", "provider must be one of openai, azure, anthropic, .*'opnai'"),
        (5, "provider must be one of"),
    ],
)
def test_a_provider_that_is_not_there_is_refused(provider: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        used(CredentialCoordinator([*OPENAI, ANTHROPIC]), provider=provider)


def test_a_pool_of_another_kind_has_no_providers() -> None:
    class Keys:
        def acquire(self) -> str:
            return "sk-proj-made-up"

        def release(self, _key: str) -> None: ...

    with pytest.raises(ValueError, match="provider is for a CredentialCoordinator"):
        used(Keys(), provider="openai")  # type: ignore[arg-type]
