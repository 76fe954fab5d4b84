"""Whose host answered decides if a refusal counts against the key. No key in here was ever issued."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentos import Context, Credential, CredentialCoordinator, ParallelCoordinator, ProgressStats, WorkflowResult

GATEWAY = "http://127.0.0.1:8000"


def refusal(origin: str, status: int = 401, client: str = "openai") -> Exception:
    """The exception of an SDK for an answer of *origin*."""
    base = type("APIError", (Exception,), {"__module__": client})
    error: Any = type("APIStatusError", (base,), {"__module__": client})(f"Error code: {status}")
    error.response = SimpleNamespace(status_code=status, headers={}, url=f"{origin}/v1/chat/completions")
    error.status_code, error.body = status, None
    return error  # type: ignore[no-any-return]


def ran(credential: Credential, *errors: Exception | None) -> tuple[ProgressStats, list[WorkflowResult], str]:
    """A run in which each item meets with one of *errors*; and the state of its only key before the run ends."""
    pool = CredentialCoordinator([credential], debug=True)
    states = []

    def worker(item: int, _key: str | None) -> None:
        error = errors[item]
        if error is not None:
            raise error

    def note(_: object) -> None:
        states.append(str(pool.snapshot()[0].state))

    run = ParallelCoordinator(1, pool, retries=0, on_progress=note)
    stats, results = run.execute_parallel(range(len(errors)), worker, str)
    return stats, results, "dead" if "dead" in states else str(pool.snapshot()[0].state)


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_refusal_by_a_known_other_provider_fails_the_item_and_costs_no_key_its_life(status: int) -> None:
    key = Credential("sk-ant-made-up", name="claude")

    stats, results, state = ran(key, *[refusal("https://api.openai.com", status) for _ in range(4)], None)

    assert (stats.failed, stats.success_count, stats.limited, stats.retried) == (4, 1, 0, 0)
    assert state == "available"
    assert results[0].error == (
        "api.openai.com is a host of openai, and claude is a key of anthropic; choose keys of openai with --provider "
        f'openai, from Python provider="openai" (Error code: {status})'
    )


def test_it_is_not_retried_with_another_key() -> None:
    pool = CredentialCoordinator([Credential(f"sk-ant-made-up-{name}", name=name) for name in "ab"], debug=True)
    used = []

    def worker(_item: int, _key: str | None, context: Context) -> None:
        assert context.lease is not None
        used.append(context.lease.name)
        raise refusal("https://generativelanguage.googleapis.com")

    stats, _ = ParallelCoordinator(1, pool, retries=5).execute_parallel([0], worker, str)

    assert (stats.failed, len(used)) == (1, 1)


@pytest.mark.parametrize(
    ("credential", "origin"),
    [
        (Credential("sk-proj-made-up"), "https://api.openai.com"),
        (Credential("made-up-key", provider="openai"), "https://eu.api.openai.com"),
        (Credential("made-up-key", base_url=f"{GATEWAY}/v1"), GATEWAY),
        (Credential("sk-proj-made-up", base_url=f"{GATEWAY}/v1"), GATEWAY),
        (Credential("sk-proj-made-up", hosts=["gw.example.com"]), "https://gw.example.com"),
        (Credential("sk-proj-made-up", hosts=["gw.example.com"]), "http://gw.example.com"),
        (Credential("sk-proj-made-up", hosts=["*.example.com"]), "https://gw.example.com:8443"),
        (Credential("sk-ant-made-up", hosts=["api.openai.com"]), "https://api.openai.com"),
        (Credential("made-up-key"), "https://api.openai.com"),  # no key says anything: it is of the one called first
    ],
    ids=str,
)
def test_a_refusal_by_its_own_provider_base_url_or_hosts_counts_at_once(credential: Credential, origin: str) -> None:
    stats, _, state = ran(credential, refusal(origin), None)

    assert state == "dead"
    assert stats.success_count == 0


@pytest.mark.parametrize(
    ("credential", "origin"),
    [
        (Credential("sk-proj-made-up"), "https://example.org"),
        (Credential("sk-proj-made-up"), GATEWAY),
        (Credential("sk-proj-made-up", base_url=f"{GATEWAY}/v1"), "http://127.0.0.1:8001"),
        (Credential("sk-proj-made-up", hosts=["gw.example.com"]), "https://other.example.com"),
    ],
    ids=str,
)
def test_a_refusal_by_any_other_host_counts_the_third_time_in_a_row(credential: Credential, origin: str) -> None:
    error = refusal(origin)

    assert ran(credential, error, error, None, error, error, None)[2] == "available"
    stats, _, state = ran(credential, error, error, error, None)
    assert (state, stats.success_count) == ("dead", 0)


def test_a_refusal_that_names_no_host_counts_as_before() -> None:
    error: Any = refusal("https://example.org")
    error.response = None

    assert ran(Credential("sk-ant-made-up"), error, None)[2] == "dead"
    assert ran(Credential("sk-ant-made-up"), refusal(""), None)[2] == "dead"


def test_keys_of_no_known_provider_beside_others_are_not_blamed_at_once() -> None:
    pool = CredentialCoordinator([Credential("sk-ant-made-up", name="a"), Credential("made-up-key", name="b")])
    with pool.lease(), pool.lease() as lease:
        assert lease.name == "b"
        lease.report(refusal("https://api.openai.com"))

    assert [row.state for row in pool.snapshot()] == ["available"] * 2


def test_a_key_that_is_not_used_in_a_run_says_why() -> None:
    pool = CredentialCoordinator([Credential("sk-proj-made-up", name="a")])
    for _ in range(3):
        with pool.lease() as lease:
            lease.report(refusal(GATEWAY))

    assert pool.snapshot()[0].why.endswith(
        "; refused three times in a row by http://127.0.0.1:8000: not used in this run. If its provider is there, say "
        "so with base_url or hosts"
    )
    pool.revive("a")
    assert pool.snapshot()[0].state == "available"
