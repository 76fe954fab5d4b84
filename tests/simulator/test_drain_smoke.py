"""The drain benchmark still runs: a scenario of two seconds, in this process, by our contender alone."""

from __future__ import annotations

import asyncio
import importlib
import time
from pathlib import Path

import pytest

from agentos.simulator import Simulator

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.skipif(not (BENCH / "drain.py").exists(), reason="the benchmarks are not part of this copy")
def test_a_small_drain_loses_nothing_and_its_table_can_be_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCH)
    bench = importlib.import_module("drain")
    drawn = bench.scenario("equal", 7, 2.0)
    tally, report = bench.Tally(), bench.Report()

    with Simulator(drawn.plan) as provider:
        began = time.monotonic()
        asyncio.run(bench.drain("agentos", bench.job_of(drawn, provider.base_url), tally))
        said = bench.summary(tally, cpu=0.0)
        outcome = bench.outcome_of(drawn, "agentos", 7, began, said, provider.statistics())
    report.title(drawn)
    report.row([outcome])
    report.judge(drawn, [outcome])

    assert outcome.lost == 0
    assert outcome.words == ""
    assert "agentos" in capsys.readouterr().out
    assert bench.json_of(outcome)["items"] == drawn.calls
