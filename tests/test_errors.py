"""Errors say what happened and what to do, and travel."""

from __future__ import annotations

import pickle

import pytest

from agentos import (
    AgentOSError,
    InvariantViolated,
    NeverFits,
    NoCredentialAvailable,
    NoUsableCredential,
    PoolClosed,
    WouldBlockLoop,
)

ERRORS = [
    NoCredentialAvailable(waited=30.0, next_free_in=4.2),
    NoUsableCredential(reason="the pool is empty; add a credential"),
    NeverFits(dimension="tokens", cost=9000, largest=8000),
    PoolClosed(),
    WouldBlockLoop(instead="async with pool.lease()"),
    InvariantViolated(name="L1", detail="two leases on one slot"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: AgentOSError) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_timeout_says_when_the_next_credential_is_due() -> None:
    error = NoCredentialAvailable(waited=30.0, next_free_in=4.2)

    assert isinstance(error, TimeoutError)
    assert str(error) == "no credential became free in 30.0s; the next is due in 4.2s"
    assert str(NoCredentialAvailable(waited=1)).endswith("the next comes when a holder gives one back")


def test_an_error_says_what_to_do() -> None:
    assert "split the request or add a credential" in str(NeverFits(dimension="tokens", cost=9000, largest=8000))
    assert "`async with pool.lease()`" in str(WouldBlockLoop(instead="async with pool.lease()"))
