"""`agentos results` as a table, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from agentos.cli.main import main
from agentos.workflows.parallel import ParallelCoordinator

from ...runs.sample_runs import crashed

ITEMS = [
    {"id": "a", "text": 'Grüße, "Welt"\nsecond line', "n": -3.5},
    {"id": "b", "text": "=SUM(A1)", "n": 2, "meta": {"lang": "de"}},
    {"id": "bad", "text": "@me", "n": 0},
]


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("AGENTOS_BASE_DIR", raising=False)
    return tmp_path / ".agentos" / "runs"


@pytest.fixture
def nightly(base: Path) -> Path:
    def work(item: Any, credential: str | None) -> Any:
        if item["id"] == "bad":
            raise ValueError("it is bad")
        return {"answer": item["text"].upper(), "score": item["n"]}

    folder = base / "nightly"
    folder.mkdir(parents=True)
    ParallelCoordinator(3, journal=folder).execute_parallel(ITEMS, work, lambda item: str(item["id"]))
    return folder


def printed(capfd: pytest.CaptureFixture[str], *typed: str, code: int = 0) -> str:
    capfd.readouterr()
    assert main(["results", *typed]) == code
    return capfd.readouterr().out


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_a_csv_opens_in_a_spreadsheet(nightly: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = printed(capfd, "nightly", "--csv")

    assert csv.Sniffer().sniff(text).delimiter == ","
    first, second, third = rows(text)
    assert list(first) == [
        *("id", "outcome", "item.id", "item.text", "item.n", "item.meta.lang", "value.answer", "value.score"),
        *("error", "attempts", "key", "duration", "tokens", "finished_at"),
    ]
    assert (first["item.text"], first["item.n"], first["value.score"]) == ('Grüße, "Welt"\nsecond line', "-3.5", "-3.5")
    assert (second["item.text"], second["item.meta.lang"], second["value.answer"]) == ("'=SUM(A1)", "de", "'=SUM(A1)")
    assert (third["outcome"], third["error"], third["value.score"]) == ("failed", "it is bad", "")
    assert text.count("\r\n") == 4  # line ends of RFC 4180; the one inside a cell is as it was


def test_a_csv_is_utf_8_in_any_locale(nightly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stdout)

    assert main(["results", "--csv", "--fields", "id,item.text"]) == 0

    stdout.flush()
    assert rows(stdout.buffer.getvalue().decode())[0]["item.text"].startswith("Grüße")


def test_chosen_fields_are_the_columns(nightly: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fields = "id, item.text, value.score,tokens"

    assert printed(capfd, "nightly", "--csv", "--fields", fields).splitlines()[-1] == "bad,'@me,,"
    line = printed(capfd, "nightly", "--fields", fields).splitlines()[1]
    assert json.loads(line) == {"id": "b", "item.text": "=SUM(A1)", "value.score": 2, "tokens": None}


def test_a_field_that_no_result_has_is_named(nightly: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for shape in ("--csv", "--jsonl", "--json"):
        assert main(["results", shape, "--fields", "id,item.txet"]) == 2
        out, err = capfd.readouterr()
        assert (out, err) == (
            "",
            "agentos: no result has item.txet\n  there is: item.id, item.text, item.n, item.meta.lang\n",
        )
    assert printed(capfd, "--csv", "--fields", "id,item.meta.lang").splitlines() == [
        "id,item.meta.lang",
        "a,",
        "b,de",
        "bad,",
    ]
    assert main(["results", "--fields", "idd"]) == 2
    assert "'idd'\n  there is: id, item, value," in capfd.readouterr().err
    assert main(["results", "--fields", ","]) == 2


def test_in_a_pipe_it_is_the_lines_of_the_results_file_in_the_order_of_the_input(
    nightly: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = [json.loads(line) for line in printed(capfd).splitlines()]

    assert [(line["index"], line["item"]) for line in found] == list(enumerate(ITEMS))
    assert found == json.loads(printed(capfd, "nightly", "--json"))
    assert printed(capfd, "nightly", "--jsonl") == printed(capfd, "nightly")


def test_on_a_terminal_it_is_a_table(
    nightly: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "70")

    head, *lines = printed(capfd, "nightly").splitlines()

    assert head.split() == ["id", "outcome", "attempts", "duration", "item", "result"]
    assert [line.split()[:2] for line in lines] == [["a", "done"], ["b", "done"], ["bad", "failed"]]
    assert lines[2].endswith("it is bad")
    assert max(map(len, lines)) <= 70


def test_an_item_is_not_repeated_where_its_id_is_the_same(
    base: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    (base / "words").mkdir(parents=True)
    ParallelCoordinator(1, journal=base / "words").execute_parallel(["x"], lambda item, _: "y" * 500, str)

    head, line = printed(capfd, "words").splitlines()

    assert head.split() == ["id", "outcome", "attempts", "duration", "result"]
    assert line.endswith("...")


def test_a_run_without_results_prints_only_what_the_format_needs(base: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (base / "empty").mkdir(parents=True)
    ParallelCoordinator(1, journal=base / "empty").execute_parallel([], lambda item, _: item, str)

    assert printed(capfd, "empty") == ""
    assert json.loads(printed(capfd, "empty", "--json")) == []
    assert printed(capfd, "empty", "--csv").startswith("id,outcome,error,")


def test_two_formats_are_refused(nightly: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "--csv", "--json"]) == 2
    assert "--csv, --jsonl and --json were given together" in capfd.readouterr().err


def test_results_are_there_after_a_kill(base: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base.mkdir(parents=True)
    crashed(base / "killed")
    assert [row["item"] for row in rows(printed(capfd, "killed", "--csv"))] == [
        row["id"] for row in rows(printed(capfd, "killed", "--csv"))
    ]
