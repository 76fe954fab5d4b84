"""SIGKILL at random moments of a 200-item run, then the same command again, until it is complete.

100 kills; ``AGENTOS_CRASH_KILLS`` asks for more (``make crash``), ``AGENTOS_CRASH_SEED`` for the moments of a red run.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from .campaign import Campaign
from .expected_outcomes import Script

KILLS = int(os.environ.get("AGENTOS_CRASH_KILLS", "100"))
SEED = int(os.environ.get("AGENTOS_CRASH_SEED") or random.SystemRandom().randrange(1_000_000))

SCRIPTS = {
    "threads, results streamed": Script("stream", workers=6),
    "threads, results in a list": Script("execute", workers=4),
    "threads, starts on disk first, an input of unknown length": Script("stream-unsized", workers=5, start="strict"),
    "coroutines": Script("coroutines", workers=8, slots=2),
    "coroutines on a loop of the user's, an async input": Script("own-loop", workers=8, slots=2),
}


@pytest.mark.timeout(300 + 5 * KILLS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_killed_at_any_moment_loses_nothing_and_runs_nothing_acknowledged_again(
    name: str, tmp_path: Path
) -> None:
    campaign = Campaign(SCRIPTS[name], tmp_path, seed=SEED, kills=KILLS // len(SCRIPTS))

    tally = campaign.fight()

    print(f"{name}: {tally.report()}")  # noqa: T201 - shown by make crash, or on failure
    assert tally.kills >= KILLS // len(SCRIPTS)
    assert not tally.missing, f"never seen, so the green is empty: {tally.missing} (seed {SEED})"
    assert tally.executed_again, "no item was ever hit"
