"""A worker with a plain SDK client, against a provider that sometimes refuses, needs no other code."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module

import pytest

from agentos import Credential, CredentialCoordinator, ParallelCoordinator
from agentos.simulator import KeyPlan, Latency, ProviderPlan, QuotaPlan, Simulator

ITEMS = [f"item-{number}" for number in range(40)]


def plan(style: str) -> ProviderPlan:
    """Two keys that bear one call at once and twenty a second, one that is dead, one whose account is empty."""
    quotas = (
        QuotaPlan("acme", rpm=1_200, request_burst=1),
        QuotaPlan("globex", rpm=1_200, request_burst=1),
        QuotaPlan("initech"),
        QuotaPlan("hooli", spent=True),
    )
    keys = (
        KeyPlan("not-a-secret-acme", "acme", name="acme"),
        KeyPlan("not-a-secret-globex", "globex", name="globex"),
        KeyPlan("not-a-secret-initech", "initech", dead=True, name="initech"),
        KeyPlan("not-a-secret-hooli", "hooli", name="hooli"),
    )
    return ProviderPlan(
        quotas,
        keys,
        latency=Latency(0.0, 0.0),
        rejection_latency=0.0,
        style=style,  # type: ignore[arg-type]
        dialect="retry-after",
        retry_after="exact",
    )


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_a_worker_that_lets_its_sdks_exceptions_out_loses_no_item(sdk: str) -> None:
    module = import_module(sdk)
    with Simulator(plan(sdk)) as provider, ExitStack() as clients:
        url = {"openai": provider.base_url, "anthropic": provider.anthropic_url}[sdk]
        keys = [
            Credential(
                key.secret,
                name=key.name,
                quota=key.quota,
                slots=4 if key.name in ("acme", "globex") else 1,
                base_url=url,
            )
            for key in provider.plan.keys
        ]
        pool = CredentialCoordinator(keys)
        make = {"openai": "OpenAI", "anthropic": "Anthropic"}[sdk]
        client_of = {
            key: clients.enter_context(getattr(module, make)(api_key=key, base_url=url, max_retries=0))
            for key in provider.keys
        }

        def ask(item: str, key: str) -> str:
            client, messages = client_of[key], [{"role": "user", "content": item}]
            if sdk == "openai":
                answer = client.chat.completions.create(model="gpt-4o", messages=messages, max_tokens=8)
                return str(answer.choices[0].message.content)
            answer = client.messages.create(model="claude-sonnet-4", messages=messages, max_tokens=8)
            return str(answer.content[0].text)

        stats, _ = ParallelCoordinator(8, pool).execute_parallel(ITEMS, ask, str)
        seen = provider.statistics()

    assert (stats.success_count, stats.failed, stats.retried) == (40, 0, 0)
    assert sum(seen.total.rejected.values()) == stats.limited + stats.rejected >= 2
    assert {row.name: row.state for row in pool.snapshot() if row.name in ("initech", "hooli")} == {
        "initech": "dead",
        "hooli": "spent",
    }
    assert (seen.keys["initech"].calls, seen.keys["hooli"].calls) == (1, 1)


@pytest.mark.parametrize(
    ("sdk", "status", "host", "secret", "owner"),
    [
        ("openai", 401, "api.openai.com", "sk-ant-api03-made-up", "anthropic"),
        ("anthropic", 403, "api.anthropic.com", "sk-proj-made-up", "openai"),
    ],
)
def test_an_sdks_exception_tells_that_another_provider_refused_the_key(
    sdk: str, status: int, host: str, secret: str, owner: str
) -> None:
    module = import_module(sdk)
    http = import_module(module.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])  # httpx or httpx2
    refusal = {"type": "error", "error": {"type": "permission_error", "message": "no", "code": "invalid_api_key"}}
    inner = http.MockTransport(lambda _: http.Response(status, json=refusal))
    make = {"openai": "OpenAI", "anthropic": "Anthropic"}[sdk]

    def ask(_item: str, key: str) -> None:
        with getattr(module, make)(api_key=key, max_retries=0, http_client=http.Client(transport=inner)) as client:
            client.models.list()

    pool = CredentialCoordinator([Credential(secret, name="mine")])
    stats, results = ParallelCoordinator(1, pool).execute_parallel(["a", "b", "c", "d"], ask, str)

    assert (stats.failed, stats.retried) == (4, 0)
    assert str(results[0].error).startswith(f"{host} is a host of {sdk}, and mine is a key of {owner}; ")
    assert [row.state for row in pool.snapshot()] == ["available"]
