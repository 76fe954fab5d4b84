"""``make soak``: drivers that share keys are killed, stopped, suspended and forked, 500 times and more."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from .trial import Trial

pytestmark = pytest.mark.timeout(4 * 3600)


def test_promises_hold_through_kills_stops_suspensions_and_forks(tmp_path: Path) -> None:
    seed = int(os.environ.get("AGENTOS_SOAK_SEED", random.randrange(10**6)))
    trial = Trial(tmp_path, seed=seed, kills=int(os.environ.get("AGENTOS_SOAK_KILLS", "500")))

    tally = trial.run()

    print(f"\nseed {seed}: {tally.report()}")  # noqa: T201 - the counts are the result
