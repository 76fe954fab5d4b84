"""The drain benchmark still runs: scenarios of a second or two, in this process, without its peers."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentos.simulator import Simulator

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, which is a script and in no package."""
    if not (BENCH / "drain.py").exists():
        pytest.skip("the benchmarks are not part of this copy")
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("drain")


@pytest.fixture
def drain(bench: ModuleType) -> Callable[[str, str, float], Any]:
    """Let a contender drain a scenario, here."""

    def drain(contender: str, name: str, seconds: float) -> Any:
        drawn = bench.scenario(name, 7, seconds)
        tally = bench.Tally()
        with Simulator(drawn.plan) as provider:
            tally.began = began = time.monotonic()
            job = bench.job_of(drawn, provider.base_url, exact=contender == bench.EXACT)
            asyncio.run(bench.drain(contender, job, tally))
            said = bench.summary(tally, cpu=0.01)
            return bench.outcome_of(drawn, contender, 7, began, said, provider.statistics())

    return drain


def test_a_small_drain_loses_nothing_and_its_table_can_be_printed(
    bench: ModuleType, drain: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    drawn, report = bench.scenario("equal", 7, 1.5), bench.Report()

    outcome = drain("agentos", "equal", 1.5)
    report.title(drawn)
    report.row([outcome])
    report.judge(drawn, [outcome])

    assert outcome.lost == 0
    assert outcome.words == ""
    assert "agentos" in capsys.readouterr().out
    assert bench.json_of(outcome)["items"] == drawn.calls


def test_exact_pacing_drains_a_provider_whose_limits_change_and_some_of_whose_keys_are_useless(
    drain: Callable[..., Any],
) -> None:
    for name in ("second-dead", "halved"):
        outcome = drain("exact", name, 0.6)

        assert outcome.lost == 0
        assert outcome.words == ""
        assert not any(outcome.useless.values())


def test_every_scenario_has_calls_for_about_its_time_and_states_what_its_clients_are_told(bench: ModuleType) -> None:
    for name in bench.SCENARIOS:
        drawn = bench.scenario(name, 7, 12.0)

        assert 8.0 <= bench.bound_of(drawn) <= 12.0, name
        assert bool(bench.job_of(drawn, "http://127.0.0.1").limits) == drawn.known


def test_short_drains_are_judged_beside_the_limiter_or_exact_pacing_and_long_ones_by_the_bound(
    bench: ModuleType, drain: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ours = replace(drain("exact", "second", 0.5), contender="agentos", bound=9.0, seconds=10.0, rejected=0, cpu=0.08)
    peer = replace(ours, contender="peer", seconds=9.5, cpu=0.04)

    def missed(name: str, seconds: float, **peers: Any) -> list[str]:
        report = bench.Report()
        report.judge(bench.scenario(name, 7, seconds), [ours], **peers)
        return [each.split(" target")[0] for each in report.missed]

    assert missed("second", 12.0, limiter=[peer]) == [
        "second: efficiency by peer's 0.95,",
        "second: CPU by aiolimiter's 2,",
    ]
    assert missed("halved", 12.0, exact=[peer]) == []
    assert missed("halved", 12.0, exact=[replace(peer, seconds=9.4)]) == ["halved: efficiency by peer's 0.94,"]
    assert missed("halved", 60.0, exact=[peer]) == ["halved: efficiency 0.9,"]
