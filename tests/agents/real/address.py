"""Each real program finds the address and token that its table gives it. Run by ``make test-agents``."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.simulator import Latency, equal_keys
from tests.agents.real_programs import EXECUTABLES, find_missing, run_program
from tests.agents.recorder import recording


def test_all_programs_are_installed() -> None:
    assert find_missing() == []


@pytest.mark.parametrize("name", [name for name in EXECUTABLES if name not in find_missing()])
def test_the_program_gets_its_answer_through_the_address(name: str, tmp_path: Path) -> None:
    plan = equal_keys(1, latency=Latency(median=0.0, sigma=0.0))
    with recording(plan) as kept:
        ended = run_program(name, kept.url, plan.secrets[0], tmp_path)

    assert (ended.code, ended.stderr if ended.code else "") == (0, "")
    assert "Simulated" in ended.stdout
    assert {each.status for each in kept.generations()} == {200}
