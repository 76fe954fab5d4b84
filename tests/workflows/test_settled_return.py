"""A lease that is settled and given back in one step: the same as in two."""

from __future__ import annotations

import asyncio
import logging

import pytest

from agentos import Credential, CredentialCoordinator, Limit
from agentos.credentials._core.cost import Used
from agentos.credentials._core.records import Ask, Grant

ALL = Ask((1.0, 100.0, None, None))
A_TENTH: Used = (None, 10.0, None, None)


@pytest.fixture
def pool() -> CredentialCoordinator:
    limits = [Limit("tokens", 100, per=3600, burst=100)]
    return CredentialCoordinator([Credential("secret-of-one", name="one", slots=2, limits=limits)])


def taken(pool: CredentialCoordinator) -> Grant:
    grant = pool.take_now(ALL, None)
    assert grant is not None
    return grant


def test_what_was_not_used_is_there_for_the_next(pool: CredentialCoordinator) -> None:
    assert pool.give_back(taken(pool), A_TENTH)

    assert pool.take_now(Ask((1.0, 90.0, None, None)), None) is not None


@pytest.mark.parametrize("waiting", [1, 2])
def test_all_who_can_start_by_it_are_woken(pool: CredentialCoordinator, waiting: int) -> None:
    """By the settling, and by the slot: more than one of them may be due."""

    async def story() -> list[str]:
        grant = taken(pool)
        tasks = [asyncio.create_task(pool.acquire_async(cost={"tokens": 40})) for _ in range(waiting)]
        while pool._core.waiting < waiting:
            await asyncio.sleep(0)

        assert pool.give_back(grant, A_TENTH)

        return [(await asyncio.wait_for(task, 30)).name for task in tasks]

    assert asyncio.run(story()) == ["one"] * waiting


def test_a_lease_that_has_ended_changes_nothing_and_both_are_said(
    pool: CredentialCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    grant = taken(pool)
    pool.give_back(grant)

    with caplog.at_level(logging.INFO, "agentos"):
        assert not pool.give_back(grant, A_TENTH)

    assert pool.take_now(Ask((1.0, 90.0, None, None)), None) is None  # all of it still counts as used
    assert "its report of usage changed nothing" in caplog.text
    assert "had already ended" in caplog.text


def test_an_interrupt_while_it_is_settled_does_not_keep_the_lease(
    pool: CredentialCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = taken(pool)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool._core, "settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.give_back(grant, A_TENTH)

    assert not pool.is_held(grant)


def test_from_within_the_pool_it_is_done_when_the_step_is_over(pool: CredentialCoordinator) -> None:
    grant = taken(pool)

    with pool._held_still():
        assert pool.give_back(grant, A_TENTH)
        assert pool.is_held(grant)

    assert not pool.is_held(grant)
    assert pool.take_now(Ask((1.0, 90.0, None, None)), None) is not None
