"""The report of a run: one file with its numbers, items and attempts, whatever has become of the run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentos.errors import JournalUnavailable
from agentos.page import previews
from agentos.page.item_columns import ENDS, STATES
from agentos.page.previews import make_preview
from agentos.page.report_file import write_report
from agentos.runs.report.run_report import build_report

from ..runs.journal.journal_helpers import flip_bit
from ..runs.sample_runs import SECRETS, Child, card, crashed, events, run, stop_after
from .recorded_rows import ROWS, write_rows
from .report_reader import all_bytes, read_data

HOSTILE = '</script><img src=x onerror="alert(1)">\x1b[31mred\x1b[0m \u202edrow\u202c שלום'
NOW = 1_800_000_000.0


def write(folder: Path) -> Path:
    page = folder.parent / f"{folder.name}.html"
    write_report(folder, page, wall=lambda: NOW)
    return page


def numbers(folder: Path) -> dict[str, Any]:
    """What ``agentos show --json`` says, without the long texts of failures."""
    told: dict[str, Any] = json.loads(json.dumps(build_report(folder, wall=lambda: NOW).as_json()))
    for failure in told["failures"]:
        for name in ("text", "error", "traceback"):
            del failure[name]
    return {**told, "retry_cause": None}


def test_every_number_equals_that_of_show(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    write_rows(folder, *ROWS)
    card(folder, "items.txt", cwd=tmp_path)

    facts, columns = read_data(write(folder))

    told = numbers(folder)
    assert facts["report"] == told
    states = Counter(STATES[code] for code in columns["state"])
    assert {state: count for state, count in told["counts"].items() if count} == states
    assert len(columns["ids"]) == told["total"]
    attempts = Counter(ENDS[code] for code in columns["earlier.kind"])
    assert attempts["limited"] == told["limited"] == 1
    assert sum(attempts.values()) + states["done"] + states["failed"] == told["attempts"] == len(ROWS)
    assert sum(columns["tokens"]) == 15 * len(columns["ids"])
    by_key = Counter(
        facts["keys"][key]
        for key, state in zip(columns["key"], columns["state"], strict=True)
        if STATES[state] == "done"
    )
    assert by_key == {key["name"]: key["done"] for key in told["keys"] if key["done"]}
    assert Counter(columns["cause"])[1] == told["failures"][0]["count"] == 2


def test_an_earlier_attempt_belongs_to_its_item(tmp_path: Path) -> None:
    write_rows(tmp_path / "r", *ROWS)

    facts, columns = read_data(write(tmp_path / "r"))

    items = [columns["ids"][row] for row in columns["earlier.item"]]
    assert items == ["slow", "slow", "cut"]
    assert [ENDS[kind] for kind in columns["earlier.kind"]] == ["limited", "retry", "interrupted"]
    assert [facts["error_texts"][text] for text in columns["earlier.text"]] == ["429", "no answer", ""]
    assert columns["earlier.duration"] == [500, 250, 500]


def test_the_head_can_be_read_without_scripts(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a", "b", "bad-1"])
    text = write(tmp_path / "r").read_text()

    static = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)

    assert "finished" in static
    assert '<dt>Done</dt><dd><div class="value">2</div><div class="note">of 3 items</div>' in static
    assert "ValueError" in static
    assert "Traceback" in static


def test_a_policy_allows_the_script_of_the_file_alone(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a"])
    text = write(tmp_path / "r").read_text()

    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    policy = text.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]

    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;;" in policy
    assert "default-src &#x27;none&#x27;" in policy
    assert "connect-src &#x27;none&#x27;" in policy
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text)


def test_hostile_texts_are_escaped_in_the_static_part(tmp_path: Path) -> None:
    def work(item: str, credential: str | None) -> str:
        raise ValueError(HOSTILE + "x" * 1_000_000)

    run(tmp_path / "r", [HOSTILE], work)
    page = write(tmp_path / "r")
    text = page.read_text()

    assert "<img" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert text.count("</script>") == 2
    assert "&lt;img" in text
    assert read_data(page)[1]["ids"] == [HOSTILE]
    assert page.stat().st_size < 200_000


def test_a_run_that_is_on_is_reported_with_its_running_items(tmp_path: Path) -> None:
    with Child(tmp_path / "r"):
        facts, columns = read_data(write(tmp_path / "r"))

    found = dict(zip(columns["ids"], (STATES[code] for code in columns["state"]), strict=True))
    assert facts["report"]["state"]["word"] == "running"
    assert found["slow"] == "running"
    assert found["later"] == "pending"


def test_a_killed_run_is_reported_as_crashed(tmp_path: Path) -> None:
    folder = crashed(tmp_path / "r")

    facts, columns = read_data(write(folder))

    assert facts["head"]["state"] == "crashed"
    assert facts["report"] == numbers(folder)
    assert Counter(STATES[code] for code in columns["state"])["running"] == 1


def test_a_stopped_run_lists_the_items_that_have_not_begun(tmp_path: Path) -> None:
    stop_after(tmp_path / "r", ["a", "b", "c", "d"], 2)

    _, columns = read_data(write(tmp_path / "r"))

    assert columns["ids"] == ["a", "b", "c", "d"]
    assert columns["attempts"] == [1, 1, 0, 0]


def test_a_damaged_journal_is_reported_up_to_the_damage(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run(folder, [f"item-{number}" for number in range(50)])
    data = (folder / "journal.sqlite").read_bytes()
    flip_bit(folder / "journal.sqlite", data.rindex(b"item-30"))

    page = write(folder)
    facts, columns = read_data(page)

    assert facts["report"]["damage"]
    assert 'class="alert"' in page.read_text()
    assert facts["report"] == numbers(folder)
    assert sum(STATES[code] == "done" for code in columns["state"]) == facts["report"]["counts"]["done"]


def test_a_folder_without_a_journal_has_no_report(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()

    with pytest.raises(JournalUnavailable):
        write_report(tmp_path / "r", tmp_path / "r.html")

    assert not (tmp_path / "r.html").exists()


def test_previews_are_short_and_failed_items_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 10_000
    monkeypatch.setattr(previews, "BUDGET", budget)

    def work(item: str, credential: str | None) -> str:
        if item.startswith("bad"):
            raise ValueError("no")
        return "v" * 5_000

    items = [*(f"item-{number:05d} {'x' * 500}" for number in range(100)), "bad " + "y" * 500]
    run(tmp_path / "r", items, work)

    facts, columns = read_data(write(tmp_path / "r"))

    rows, texts = facts["texts"]["previews"]
    assert STATES[columns["state"][rows[0]]] == "failed"
    assert all(len(each) <= 80 for pair in texts for each in pair)
    assert 0.9 * budget < sum(len(each.encode()) for pair in texts for each in pair) <= budget
    assert facts["texts"]["errors"] == [[rows[0]], ["no"]]


@pytest.mark.parametrize(
    ("json_text", "preview"),
    [
        ('"plain"', "plain"),
        ('"cut off \\u00e', "cut off"),
        ('"two\\nlines"', "two lines"),
        ('{"a": 1}', '{"a": 1}'),
        ("null", ""),
        (None, ""),
        ('"' + "x" * 100 + '"', "x" * 77 + "..."),
    ],
)
def test_a_preview_is_the_beginning_of_a_value_on_one_line(json_text: str | None, preview: str) -> None:
    assert make_preview(json_text) == preview


def test_only_failed_items_have_the_end_of_their_log(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a", "bad-1"])
    logs = tmp_path / "r" / "logs"
    logs.mkdir(mode=0o700)
    for name in ("a", "bad-1"):
        (logs / f"{name}.log").write_text("first line\n" + "\x1b[1mlong\x1b[0m line\n" * 1_000 + f"the end of {name}\n")
        (logs / f"{name}.log").chmod(0o600)

    facts, columns = read_data(write(tmp_path / "r"))

    rows, texts = facts["texts"]["logs"]
    assert [columns["ids"][row] for row in rows] == ["bad-1"]
    assert texts[0].endswith("the end of bad-1")
    assert "\x1b" not in texts[0]
    assert len(texts[0]) <= 4_096


def test_periods_of_keys_and_bounds_come_from_the_events(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run(folder, ["a"], keys=SECRETS)
    began = build_report(folder).sessions[0].started_at
    events(
        folder,
        {"at": began, "kind": "session"},
        {"at": began + 1, "kind": "key", "name": "k", "state": "cooling", "until": began + 60, "why": "429"},
        {"at": began + 3, "kind": "key", "name": "k", "state": "available", "until": None, "why": ""},
        {"at": began + 4, "kind": "bound", "since": began, "until": began + 4, "parallel": 4, "running": 3.0,
         "by": {"quota": 4.0}, "idle": {"quota": 4.0}, "keys": {"k": 4.0}},
    )  # fmt: skip

    page = write(folder)
    facts, _ = read_data(page)

    ((name, state, since, until, why),) = facts["periods"]
    assert (name, state, why) == ("k", "cooling", "429")
    assert until - since == pytest.approx(2_000, abs=2)
    assert [each[2] for each in facts["bounds"]] == [{"quota": 4.0}]
    assert facts["report"]["bounds"] == {"by": {"quota": 4.0}, "lost": {"quota": 1.0}, "keys": {"k": 4.0}}
    assert "mostly quota (100 % of the time" in page.read_text()


def test_no_secret_of_the_keys_is_in_the_report(tmp_path: Path) -> None:
    def leak(item: str, credential: str | None) -> str:
        if item == "bad":
            raise ValueError(f"refused: {credential}")
        return f"used {credential}"

    run(tmp_path / "r", ["a", "bad"], leak, keys=SECRETS)

    content = all_bytes(write(tmp_path / "r"))

    assert b"used" in content
    assert not any(secret.encode() in content for secret in SECRETS)
