"""Records with absurd usage, written by an earlier version, are read safely."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos import Credential, CredentialCoordinator, Limit
from agentos.pool.core.cost import Used
from agentos.pool.core.learning import reported
from agentos.pool.core.limits import bucket
from agentos.providers import Event, Reading, Signal

from ..contract.store_contract import SHARED, Place, Store

SECRET = "sk-absurd-usage-0123456789abcdef"
LIMITS = {
    "bucket": Limit("tokens", 1000, per=60),
    "sliding window": Limit("tokens", 1000, per=60, window="sliding"),
    "day": Limit("tokens", 1000, per="day"),
}


@pytest.fixture(params=SHARED, ids=lambda store: store.name)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    store: Store = request.param
    place = Place(store, tmp_path)
    yield place
    place.close()


def poison(pool: CredentialCoordinator, figure: float) -> None:
    """Do as a version without any check: the figure goes to the store as it is."""
    lease = pool.acquire_nowait(cost={"tokens": 10})
    assert lease._grant is not None
    used: Used = (None, figure, None, None)
    assert pool._runtime.settle(lease._grant, used)
    lease.release()


@pytest.mark.parametrize("figure", [1e9, 1e15, 1e308, float("inf"), float("nan")])
@pytest.mark.parametrize("kind", LIMITS)
def test_a_limit_is_as_new_after_absurd_usage(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str, figure: float
) -> None:
    credential = Credential(SECRET, name="a", limits=[LIMITS[kind]], slots=3)
    with monkeypatch.context() as patched:
        patched.setattr(bucket, "heaviest", lambda *_: float("inf"))
        pool = place.open(credential, debug=False)
        poison(pool, figure)
    reopened = place.restart(pool, credential)

    with reopened.lease(cost={"tokens": 600}) as lease:
        lease.settle(tokens=500)

    ((state,),) = [row.limits for row in reopened.snapshot()]
    assert state.left == 500
    later = place.restart(reopened, credential)
    ((state,),) = [row.limits for row in later.snapshot()]
    assert state.left == 500


def test_a_limit_that_was_learned_is_learned_anew_after_absurd_usage(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = Credential(SECRET, name="a", slots=3)
    reading = Reading("tokens", 1000.0, 900.0, window=60.0, source="x-tokens")
    with monkeypatch.context() as patched:
        patched.setattr(reported, "heaviest", lambda *_: float("inf"))
        pool = place.open(credential, debug=False)
        with pool.lease() as lease:
            lease.report(Signal(Event.OK, readings=(reading,)))
        poison(pool, 1e15)
    reopened = place.restart(pool, credential)
    assert reopened.snapshot()[0].limits == ()

    with reopened.lease() as lease:
        lease.report(Signal(Event.OK, readings=(reading,)))

    (state,) = reopened.snapshot()[0].limits
    assert state.left == pytest.approx(900)
