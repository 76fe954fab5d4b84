"""The table of bench/strategies.py, with few calls: what it says of the strategies holds, and it says it every time."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CALLS, SEED = 1_200, 1


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The benchmark, which is a script and in no package."""
    path = Path(__file__).parents[2] / "bench" / "strategies.py"
    if not path.exists():
        pytest.skip("the benchmarks are not part of this copy")
    spec = importlib.util.spec_from_file_location("bench_strategies", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its data classes look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def table(bench: ModuleType) -> dict[str, list[Any]]:
    """What became of the calls, by strategy: with eight quotas, and with three."""
    calls = bench.calls_of(CALLS, SEED)
    return {
        row.name: [bench.play(row, scene, calls, SEED) for scene in bench.SCENES]
        for row in (*bench.OTHERS, *bench.OURS)
    }


def outcomes(table: dict[str, list[Any]], *beginnings: str) -> list[list[Any]]:
    found = [cells for name, cells in table.items() if name.startswith(beginnings)]
    assert found
    return found


def test_agentos_loses_no_call(table: dict[str, list[Any]]) -> None:
    assert [cell.failed for cells in outcomes(table, "agentos") for cell in cells] == [0] * 8


def test_a_router_that_does_not_wait_loses_calls(table: dict[str, list[Any]]) -> None:
    [cells] = outcomes(table, "LiteLLM")

    assert all(cell.failed > 0 for cell in cells)


def test_every_strategy_that_waits_loses_no_call(table: dict[str, list[Any]]) -> None:
    assert not any(cell.failed for cells in outcomes(table, "wait", "the same, cost") for cell in cells)


def test_agentos_is_refused_least_where_the_limits_are_stated(table: dict[str, list[Any]]) -> None:
    for column in range(2):
        [ours] = outcomes(table, "agentos, limits stated")

        assert ours[column].rejected == min(cells[column].rejected for cells in table.values())


def test_agentos_with_nothing_stated_is_refused_least_of_those_who_do_not_know_the_limits(
    table: dict[str, list[Any]],
) -> None:
    """Where keys share quotas: with a quota for each key, so few calls hardly ever meet a limit."""
    others = outcomes(table, "wait, fixed", "wait, exact", "wait, FIFO")

    for _, ours in outcomes(table, "agentos, nothing"):
        assert ours.rejected < min(cell.rejected for _, cell in others)


def test_nobody_is_faster_than_can_be(bench: ModuleType, table: dict[str, list[Any]]) -> None:
    calls = bench.calls_of(CALLS, SEED)
    for column, scene in enumerate(bench.SCENES):
        best = bench.best_seconds(scene("none", SEED), calls)

        assert all(cells[column].seconds >= best for cells in table.values() if not cells[column].failed)


def test_the_same_seed_gives_the_same_log(bench: ModuleType) -> None:
    calls = bench.calls_of(300, SEED)
    for row in (*bench.OTHERS, *bench.OURS):
        logs: list[list[Any]] = [[], []]

        for log in logs:
            bench.play(row, bench.three_quotas, calls, SEED, log=log)

        assert logs[0] == logs[1]
