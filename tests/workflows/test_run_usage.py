"""The tokens that items used: in their results, the journal and the report."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from agentos import (
    Command,
    Context,
    Credential,
    CredentialCoordinator,
    ParallelCoordinator,
    Transient,
    Usage,
    WorkflowResult,
)
from agentos.runs.report.run_report import build_report

PAID = {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 1_000}
ONE = Usage(input=100, output=20, cache_read=1_000)


def pool_of(*names: str) -> CredentialCoordinator:
    return CredentialCoordinator([Credential(f"sk-none-{name}", name=name) for name in names])


def results_of(run: ParallelCoordinator, items: list[str], worker: Any) -> dict[str, WorkflowResult]:
    _, results = run.execute_parallel(items, worker, str)
    return {result.item_id: result for result in results}


def test_what_a_worker_settles_is_in_its_result_and_summed_for_the_run() -> None:
    def worker(item: str, credential: str, context: Context) -> str:
        context.settle(PAID)
        return item

    run = ParallelCoordinator(2, pool_of("alice"))
    results = results_of(run, ["a", "b"], worker)

    assert {name: result.usage for name, result in results.items()} == {"a": ONE, "b": ONE}
    assert run.stats is not None
    assert run.stats.usage == ONE + ONE


def test_an_item_without_reported_tokens_has_no_usage() -> None:
    results = results_of(ParallelCoordinator(1, pool_of("alice")), ["a"], lambda item, credential: item)

    assert results["a"].usage is None


class NoJitter:
    def random(self) -> float:
        return 0.0


def test_failed_attempts_are_paid_for_and_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.runs.execution.engine_run.SystemRandom", NoJitter)

    def worker(item: str, credential: str, context: Context) -> str:
        context.settle(PAID)
        if context.attempt < 3:
            raise Transient("503")
        raise ValueError("broken")

    run = ParallelCoordinator(1, pool_of("alice"), retries=2)
    results = results_of(run, ["a"], worker)

    assert (results["a"].attempts, results["a"].usage) == (3, ONE + ONE + ONE)
    assert run.stats is not None
    assert run.stats.usage == ONE + ONE + ONE


def test_without_a_pool_and_in_a_coroutine_usage_is_recorded_too() -> None:
    async def worker(item: str, credential: None, context: Context) -> str:
        assert context.settle(input_tokens=7, output_tokens=3) is False
        return item

    results = results_of(ParallelCoordinator(1), ["a"], worker)

    assert results["a"].usage == Usage(input=7, output=3)


class ChatCompletion:
    """An answer as the SDK of openai returns it."""

    __module__ = "openai.types.chat"

    def __init__(self) -> None:
        self.usage = type("Usage", (), {"prompt_tokens": 9, "completion_tokens": 4})()


def test_the_answer_of_an_sdk_that_a_worker_returns_states_its_usage() -> None:
    results = results_of(ParallelCoordinator(1), ["a"], lambda item, credential: ChatCompletion())

    assert results["a"].usage == Usage(input=9, output=4)


def test_the_journal_and_the_report_have_the_usage(tmp_path: Path) -> None:
    """The first attempt of "a" uses another key than its second."""

    def worker(item: str, credential: str, context: Context) -> str:
        context.settle(PAID)
        if item == "a" and context.attempt == 1:
            context.lease.rejected("401")  # type: ignore[union-attr]
            raise Transient("401")
        return item

    run = ParallelCoordinator(1, pool_of("alice", "bob"), journal=tmp_path / "night")
    first = results_of(run, ["a", "b"], worker)
    again = results_of(ParallelCoordinator(1, pool_of("bob"), journal=tmp_path / "night"), ["a", "b"], worker)
    report = build_report(tmp_path / "night")

    assert {name: result.usage for name, result in first.items()} == {"a": ONE + ONE, "b": ONE}
    assert {name: (result.cached, result.usage) for name, result in again.items()} == {
        "a": (True, ONE + ONE),
        "b": (True, ONE),
    }
    assert {key.name: key.usage for key in report.keys} == {"alice": ONE, "bob": ONE + ONE}
    assert report.usage == ONE + ONE + ONE
    assert report.as_json()["usage"] == (ONE + ONE + ONE).to_json()
    assert json.loads(json.dumps(report.as_json()))["keys"][0]["usage"] == ONE.to_json()


def test_an_item_that_is_resumed_keeps_what_it_used_before(tmp_path: Path) -> None:
    runs: list[ParallelCoordinator] = []

    def worker(item: str, credential: str, context: Context) -> str:
        context.settle(PAID)
        if len(runs) == 1:
            runs[0].shutdown()
            raise Transient("503")
        return item

    runs.append(run := ParallelCoordinator(1, pool_of("alice"), journal=tmp_path / "night"))
    run.execute_parallel(["a"], worker, str)
    runs.append(again := ParallelCoordinator(1, pool_of("alice"), journal=tmp_path / "night"))
    results = results_of(again, ["a"], worker)

    assert results["a"].usage == ONE + ONE
    assert build_report(tmp_path / "night").usage == ONE + ONE


OUTCOME = {**PAID, "server_tool_use": {"web_search_requests": 0}, "service_tier": "standard"}


def test_a_command_passes_its_agents_usage_on_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    report = json.dumps({"usage": OUTCOME})
    command = Command(["sh", "-c", 'printf "%s" "$0" >"$AGENTOS_OUTCOME"', report])

    for pool in (pool_of("alice"), None):
        results = results_of(ParallelCoordinator(1, pool), ["a", "b"], command)

        assert {name: result.usage for name, result in results.items()} == {"a": ONE, "b": ONE}
    assert "AGENTOS_OUTCOME" not in caplog.text


def test_a_command_that_fails_has_been_paid_for() -> None:
    script = """printf '{"usage": {"input_tokens": 5}}' >"$AGENTOS_OUTCOME"; exit 3"""
    results = results_of(ParallelCoordinator(1, pool_of("alice")), ["a"], Command(["sh", "-c", script]))

    assert (results["a"].success, results["a"].usage) == (False, Usage(input=5))


def test_usage_that_cannot_be_read_is_warned_of_once_in_a_run(caplog: pytest.LogCaptureFixture) -> None:
    script = """printf '{"usage": {"tokenz": 5}}' >"$AGENTOS_OUTCOME" """
    results = results_of(ParallelCoordinator(1, pool_of("alice")), ["a", "b", "c"], Command(["sh", "-c", script]))

    assert all(result.success and result.usage is None for result in results.values())
    assert caplog.text.count("usage has none of") == 1


def settle_remotely(item: str, credential: str, context: Any) -> str:
    context.settle(PAID)
    return item


def test_usage_that_another_process_reports_comes_home() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as executor:
        for lease in ("item", "call"):
            run = ParallelCoordinator(1, pool_of("alice"), engine=executor, lease=lease)
            results = results_of(run, ["a"], settle_remotely)

            assert results["a"].usage == ONE
