"""Sessions stay where their prompt cache and their state are."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from agentos import Credential, CredentialCoordinator
from agentos.gateway import GatewaySettings
from agentos.gateway.records import RequestFile
from agentos.simulator import Latency, Simulator, organisations
from agentos.util.private_folder import PrivateFolder

from .running import Provider, Received, Served, make_pool, provider, secret, serving, wait_until

SESSION = {"session-id": "s-1"}


def answer(received: Received) -> None:
    """Answer as an organisation that makes state of its own."""
    number = received.key[-1]
    body = {"id": f"resp_of_{number}", "output": [{"type": "reasoning", "encrypted_content": f"enc-{number}-abcdef"}]}
    received.json(json.dumps(body).encode(), headers=f"x-codex-turn-state: turn-{number}\r\n")


@pytest.fixture
def upstream() -> Iterator[Provider]:
    with provider(answer) as made:
        yield made


@pytest.fixture
def pool(upstream: Provider) -> Iterator[CredentialCoordinator]:
    with make_pool(upstream.url, 3, slots=4) as made:
        yield made


def ask(served: Served, body: dict[str, object] | None = None, headers: dict[str, str] | None = None) -> str:
    """The name of the key that served a request."""
    found = served.ask("/v1/responses", {"model": "m", "input": "x", **(body or {})}, headers=headers)
    assert found.status == 200, found.body
    return found.headers["x-agentos-key"]


def test_a_session_keeps_its_key_while_that_is_free(pool: CredentialCoordinator) -> None:
    with serving(pool) as served:
        ask(served)
        first = ask(served, headers=SESSION)
        others = {ask(served) for _ in range(6)}

        assert len(others) == 3
        assert {ask(served, headers=SESSION) for _ in range(6)} == {first}
        assert {ask(served, {"prompt_cache_key": "s-1"}, None) for _ in range(3)} <= {first}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("state", ["previous_response_id", "encrypted_content", "turn state"])
def test_a_request_with_state_of_an_organisation_waits_for_that_one(
    pool: CredentialCoordinator, state: str, named: bool
) -> None:
    with serving(pool) as served:
        first = ask(served, headers=SESSION if named else None)
        number = first[-1]
        body: dict[str, object] = {}
        headers = dict(SESSION) if named else {}
        if state == "previous_response_id":
            body = {"previous_response_id": f"resp_of_{number}"}
        elif state == "encrypted_content":
            body = {"input": [{"type": "reasoning", "encrypted_content": f"enc-{number}-abcdef"}]}
        else:
            headers["x-codex-turn-state"] = f"turn-{number}"
        pool.mark_rate_limited(secret(int(number)), 0.5)

        assert ask(served, body, headers) == first  # after the cooldown
        assert ask(served) != first or ask(served) != first


def test_state_is_recognised_for_a_client_that_accepts_compressed_answers(
    pool: CredentialCoordinator, upstream: Provider
) -> None:
    def compress(received: Received) -> None:
        body = json.dumps({"id": f"resp_of_{received.key[-1]}"}).encode()
        accepted = "gzip" in received.headers["accept-encoding"]
        received.json(gzip.compress(body) if accepted else body, headers="content-encoding: gzip\r\n" * accepted)

    upstream.reply = compress
    with serving(pool) as served:
        first = ask(served, headers={"accept-encoding": "gzip, deflate"})
        pool.mark_rate_limited(secret(int(first[-1])), 0.5)

        assert ask(served, {"previous_response_id": f"resp_of_{first[-1]}"}) == first


def test_a_session_of_an_earlier_gateway_goes_to_the_key_that_served_it(
    pool: CredentialCoordinator, tmp_path: Path
) -> None:
    with PrivateFolder.at(tmp_path) as folder, contextlib.closing(RequestFile(folder)) as file:
        with serving(pool) as served:
            first = ask(served, headers=SESSION)
            wait_until(lambda: bool(served.records))
        file.add(served.records[0])
        earlier = {**file.read_last_keys(), "s-2": "a key that is gone"}
    pool.mark_rate_limited(secret(int(first[-1])), 0.5)

    with serving(pool) as served:
        served.gateway.remember_sessions(earlier)
        assert ask(served, {"previous_response_id": f"resp_of_{first[-1]}"}, SESSION) == first
        assert ask(served, {"previous_response_id": "resp_of_9"}, {"session-id": "s-2"})


def test_a_bound_session_moves_when_its_key_is_dead(pool: CredentialCoordinator) -> None:
    with serving(pool) as served:
        first = ask(served, headers=SESSION)
        pool.retire(first)

        assert ask(served, {"previous_response_id": f"resp_of_{first[-1]}"}, SESSION) != first


def test_a_bound_session_moves_when_its_key_is_parked_too_long(pool: CredentialCoordinator) -> None:
    with serving(pool, GatewaySettings(park_after=60.0)) as served:
        first = ask(served, headers=SESSION)
        pool.mark_rate_limited(secret(int(first[-1])), 5000.0)

        assert ask(served, {"previous_response_id": f"resp_of_{first[-1]}"}, SESSION) != first


def test_no_session_of_three_organisations_breaks_under_load() -> None:
    plan = organisations({"acme": 1, "beta": 1, "core": 1}, rpm=1200, latency=Latency(0.002, 0.01))
    with Simulator(plan) as running:
        keys = [
            Credential(key.secret, name=key.name, quota=key.quota, provider="openai", base_url=running.url, slots=2)
            for key in plan.keys
        ]
        with CredentialCoordinator(keys) as pool, serving(pool) as served, ThreadPoolExecutor(12) as threads:
            used = list(threads.map(partial(converse, served), range(12)))

    assert set().union(*used) == {"acme-1", "beta-1", "core-1"}
    assert all(len(keys_used) == 1 for keys_used in used)


def converse(served: Served, number: int) -> set[str]:
    """Hold a conversation of six turns as codex does; return the keys that served it."""
    headers = {"session-id": f"session-{number}"}
    body: dict[str, object] = {"model": "m", "input": [], "include": ["reasoning.encrypted_content"]}
    used = set()
    for _ in range(6):
        found = served.ask("/v1/responses", body, headers=headers)
        assert found.status == 200, found.body
        used.add(found.headers["x-agentos-key"])
        headers["x-codex-turn-state"] = found.headers["x-codex-turn-state"]
        body = {**body, "input": [*body["input"], *found.json()["output"]]}  # type: ignore[misc]
    return used
