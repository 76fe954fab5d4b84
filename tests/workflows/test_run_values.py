"""The values of a run: what the worker returned, as the journal keeps it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from agentos import Command, CredentialCoordinator, ParallelCoordinator, WorkflowResult, load_run
from agentos.runs.display.phrases import format_closing
from agentos.runs.report.run_report import build_report
from tests.runs.exports.test_value_codec import OBJECTS

KEY = "sk-proj-Qm7vTz2LxWb9RkYd4Hs6Jn3cPf8GuEa5VoMx1Zt7"


def facts(result: WorkflowResult) -> tuple[Any, ...]:
    return result.value, result.value_repr, result.value_type, result.redacted


def run(folder: Path, values: list[Any], pool: CredentialCoordinator | None = None) -> Any:
    def work(item: int, credential: str | None) -> Any:
        return values[item]

    coordinator = ParallelCoordinator(1, pool, journal=folder)
    return coordinator.execute_parallel(range(len(values)), work, str)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=OBJECTS)
def test_first_run_resumed_run_and_load_run_return_the_same(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    folder = tmp_path_factory.mktemp("run")

    _, (first,) = run(folder, [value])
    _, (again,) = run(folder, [None])

    assert again.cached
    assert facts(first) == facts(again) == facts(next(iter(load_run(folder).results)))


def test_a_value_that_is_not_json_is_warned_of_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "agentos"):
        stats, _ = run(tmp_path / "r", [1j, open, "text"])

    said = [record.getMessage() for record in caplog.records if "value_repr" in record.getMessage()]
    assert len(said) == 1
    assert "what 0 returned" in said[0]
    assert "complex has no JSON form" in said[0]
    assert "pydantic models" in said[0]
    report = build_report(tmp_path / "r")
    assert (stats.not_json, report.not_json, report.as_json()["not_json"]) == (2, 2, 2)
    assert '2 values are not JSON and are kept as text only ("value_repr")' in list(format_closing(stats))


def test_an_answer_about_keys_stays_and_one_with_a_key_is_marked(tmp_path: Path) -> None:
    about = "export OPENAI_API_KEY=sk-proj-...  # 12 characters: Qm7vTz2LxWb9"
    pool = CredentialCoordinator([KEY])

    stats, results = run(tmp_path / "r", [about, {"key": KEY}], pool)
    _, again = run(tmp_path / "r", [None, None], pool)

    assert facts(results[0]) == (about, None, None, False)
    assert facts(results[1]) == ({"key": "sk-proj-<secret>"}, None, None, True)
    assert [facts(each) for each in again] == [facts(each) for each in results]
    assert (stats.redacted, build_report(tmp_path / "r").redacted) == (1, 1)
    assert '1 value contained a secret, which was removed ("redacted")' in list(format_closing(stats))
    assert KEY not in json.dumps([each.value for each in again])


def test_a_command_that_prints_its_key_is_marked(tmp_path: Path) -> None:
    pool = CredentialCoordinator([KEY])
    command = Command(["sh", "-c", "test $AGENTOS_ITEM = quiet && echo sk-proj-... || echo $AGENTOS_CREDENTIAL"])

    stats, results = ParallelCoordinator(1, pool, journal=tmp_path / "r").execute_parallel(
        ["quiet", "loud"], command, str
    )

    assert [(each.value["stdout"], each.redacted) for each in results] == [
        ("sk-proj-...\n", False),
        ("sk-proj-<secret>\n", True),
    ]
    assert (stats.redacted, build_report(tmp_path / "r").redacted) == (1, 1)
