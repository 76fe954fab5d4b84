"""What a provider does to each real program is classified right. Run by ``make test-agents``."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentos.simulator import Scripted
from tests.agents.situations import RESET_IN, build_script

from .machine import PROGRAMS, STYLES, Machine, machine, until

# What one key and no gateway tells of each situation.
ENDINGS = {
    "done": "done",
    "limited-short": "done",
    "rejected": "key rejected",
    "spent": "out of credit",
    "context": "context too long",
    "overloaded": "provider overloaded",
    "usage-limit": "parked",
    "limited-unstated": "rate-limited",
    "cut": "provider overloaded",
}
TOLD_LESS = {
    ("claude", "usage-limit"): "rate-limited",
    ("gemini", "usage-limit"): "rate-limited",
    ("gemini", "cut"): "failed",
    ("codex", "cut"): "failed",
}
ATTEMPT_ENDS = ("done", "failed", "limited", "retry")
# Without the gateway, codex and opencode wait for an hour by themselves.
WITH_GATEWAY = [*TOLD_LESS, *((name, "limited-long") for name in PROGRAMS)]


def build(name: str, situation: str) -> tuple[Scripted, ...]:
    script = build_script(STYLES.get(name, "openai"), situation)
    if name != "opencode" or situation not in ("spent", "overloaded", "usage-limit"):
        return script
    # It repeats these for a minute unless it is told to come soon.
    return tuple(replace(each, headers={**dict(each.headers), "retry-after-ms": "50"}) for each in script)


def read_ending(user: Machine, *options: str) -> tuple[str, float | None]:
    """Return how the first attempt ended, and until when it waits. The run is not: it may wait for an hour."""
    with user.start(user.words(*options, "--retries", "0", "--store", "memory")) as driver:
        try:
            until(lambda: user.rows(*ATTEMPT_ENDS) or driver.poll() is not None, driver)
        finally:
            driver.kill()
        errors = driver.communicate()[1]
    rows = user.rows(*ATTEMPT_ENDS)
    assert rows, errors
    return rows[0]["ending"], rows[0].get("until")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("situation", ENDINGS)
def test_what_a_provider_does_is_classified_right(name: str, situation: str, tmp_path: Path) -> None:
    with machine(tmp_path, name, build(name, situation)) as (user, _):
        ending, _ = read_ending(user, "--no-gateway")

    assert ending == TOLD_LESS.get((name, situation), ENDINGS[situation])


@pytest.mark.parametrize(("name", "situation"), WITH_GATEWAY)
def test_the_gateway_tells_what_the_program_does_not(name: str, situation: str, tmp_path: Path) -> None:
    lasts = {"limited-long": 3600, "usage-limit": RESET_IN}.get(situation)
    began = time.time()
    with machine(tmp_path, name, build(name, situation)) as (user, _):
        ending, ends_at = read_ending(user)

    assert ending == ("parked" if lasts else ENDINGS[situation])
    if lasts:
        assert ends_at is not None
        assert began + lasts - 10 <= ends_at <= time.time() + lasts + 10
