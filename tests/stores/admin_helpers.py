"""Helpers for the admin tests: credentials with visible state, and a store read from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentos import Credential, CredentialCoordinator, CredentialState, Limit
from agentos.pool.core.records import KeySpec
from agentos.providers import Event, Reading, Signal
from agentos.stores.admin import read_store
from agentos.stores.dump import CredentialRow
from agentos.stores.redis.url import RedisLocation
from agentos.stores.sqlite.location import parse_location

from ..contract.store_contract import Place

KEYS: dict[str, dict[str, Any]] = {
    "alice": {"slots": 2, "rpm": 60, "tpm": 10_000, "rpd": 1_000},
    "bob": {"quota": "acme", "slots": 3},
    "carol": {"quota": "acme"},
    "dave": {"slots": "auto"},
    "erin": {"limits": [Limit("requests", 5, window="sliding"), Limit("tokens", 100, model="m-*")]},
}


def credential(name: str, secret: str | None = None, **facts: Any) -> Credential:
    return Credential(secret or f"planted-secret-of-{name}", name=name, **(KEYS.get(name, {}) | facts))


def opened(place: Place, *names: str) -> CredentialCoordinator:
    return place.open(*(credential(name) for name in names or KEYS))


def spec(name: str) -> KeySpec:
    made = credential(name)
    slots = 1 if made.slots == "auto" else made.slots
    return KeySpec(name, slots, made.quota, made.limits, auto=made.slots == "auto")


def at(place: Place) -> Path | RedisLocation:
    """Return the location of the store."""
    found = parse_location(place.store.url(place.folder), {})
    assert found is not None
    return found


def seen(place: Place, *specs: KeySpec) -> dict[str, CredentialRow]:
    found = read_store(at(place), specs, place.clock)
    assert found is not None
    return {each.state.name: each for each in found}


def state(place: Place, name: str, *specs: KeySpec) -> CredentialState:
    return seen(place, *specs)[name].state


def limited(delay: float, *readings: Reading) -> Signal:
    return Signal(Event.LIMITED, delay, readings=readings, evidence=("header retry-after",), status=429)


def on(pool: CredentialCoordinator, name: str) -> Any:
    """A lease on that very credential."""
    others = []
    while (lease := pool.acquire_nowait()).name != name:
        others.append(lease)
    for other in others:
        other.release()
    return lease


def refuse(pool: CredentialCoordinator) -> None:
    """Its first credential is dead, and the process ends."""
    with pool.lease() as lease:
        lease.rejected("401")
    pool.close()
    assert pool._runtime.is_finished()
