"""The report in a real browser: no request, every item as text, the numbers of `agentos show`, usable by keyboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentos.page.report_file import write_report
from agentos.runs.report.run_report import build_report

from ..page.recorded_rows import FAILURE, LIMITED, write_rows
from ..runs.journal.journal_helpers import flip_bit
from ..runs.sample_runs import card, crashed, events, run
from .conftest import OpenPage, find_barriers

HOSTILE = {
    "script": "</script><script>window.broken = true</script>",
    "html": '<img src="http://localhost:9/x.png" onerror="window.broken = true"><h1>big</h1>',
    "ansi": "\x1b[31mred\x1b[0m\x07\r\n\x1b]0;title\x07",
    "right-to-left": "\u202eevil\u202c \u05e9\u05dc\u05d5\u05dd \u2066x\u2069",
    "long": "long " * 200_000,
    "template": "${window.broken = true} {{constructor}} `x`",
}


def work(item: dict[str, str], credential: str | None) -> str:
    if item["id"].startswith("bad"):
        raise ValueError(f"{item['text']} is not good")
    return item["text"]


def write(folder: Path) -> Path:
    page = folder.parent / f"{folder.name}.html"
    write_report(folder, page)
    return page


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 120 items over two keys; two failed, each for its own reason."""
    folder = tmp_path_factory.mktemp("sample") / "night"
    rows: list[tuple[Any, ...]] = [
        ("done", f"item-{number:03d}", number + 1, 1, f"key-{number % 2 + 1}", 1.5, None, None) for number in range(118)
    ]
    rows.insert(20, ("limited", "item-040", 201, 1, "key-1", 0.5, "429 Too Many Requests", LIMITED))
    rows.insert(60, ("failed", "bad-1", 202, 1, "key-1", 0.75, "'weather'", FAILURE))
    rows.insert(
        90, ("failed", "odd-1", 203, 1, "key-2", 0.75, "no tea", {**FAILURE, "type": "TeaError", "place": "a.py:1"})
    )
    write_rows(folder, *rows)
    card(folder, "items.txt", "--worker", "work.py:ask", cwd=folder.parent)
    report = build_report(folder)
    began, name = report.sessions[0].started_at, report.keys[0].name
    events(
        folder,
        {"at": began, "kind": "session"},
        {"at": began, "kind": "key", "name": name, "state": "cooling", "until": began + 9, "why": "429 for 9 s"},
        {"at": began + 1, "kind": "bound", "since": began, "until": began + 1, "parallel": 2, "running": 1.0,
         "by": {"quota": 0.75, "workers": 0.25}, "idle": {"quota": 0.75}, "keys": {name: 0.75}},
    )  # fmt: skip
    return folder


def test_a_report_makes_no_request_and_no_error(
    sample: Path, open_page: OpenPage, requests: list[str], problems: list[str]
) -> None:
    page = open_page(write(sample))

    page.locator("#items tbody tr").first.wait_for()

    assert [each for each in requests if not each.startswith(("file:", "data:"))] == []
    assert len([each for each in requests if each.startswith("file:")]) == 1
    assert problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_serious_barrier(sample: Path, open_page: OpenPage, scheme: str) -> None:
    page = open_page(write(sample), color_scheme=scheme)

    assert find_barriers(page) == []

    page.locator("#items button.link").first.click()
    assert find_barriers(page) == []


def test_the_numbers_on_the_page_are_those_of_show(sample: Path, open_page: OpenPage) -> None:
    page = open_page(write(sample))
    told = json.loads(json.dumps(build_report(sample).as_json()))

    counts = page.evaluate("() => agentosPage.data.countStates()")
    states = page.evaluate("() => agentosPage.data.header.report.counts")
    cards = dict(
        zip(page.locator(".card dt").all_inner_texts(), page.locator(".card .value").all_inner_texts(), strict=True)
    )

    assert (
        dict(zip(["pending", "running", "done", "failed", "interrupted", "parked"], counts, strict=True))
        == told["counts"]
    )
    assert states == told["counts"]
    assert cards["Done"] == str(told["counts"]["done"])
    assert cards["Failed"] == str(told["counts"]["failed"])
    assert cards["Rate-limited"] == str(told["limited"])
    assert page.locator("#items .summary").inner_text() == f"{told['total']} items"
    by_key = page.locator("#keys tbody tr").all_inner_texts()
    assert [row.split("\t")[:3] for row in by_key] == [
        [key["name"], str(key["done"]), str(key["failed"])] for key in told["keys"]
    ]
    failures = page.locator(".failure .count").all_inner_texts()
    assert failures == [str(failure["count"]) for failure in told["failures"]]


def test_hostile_texts_are_shown_as_text(
    tmp_path: Path, open_page: OpenPage, requests: list[str], problems: list[str]
) -> None:
    items = [{"id": f"{prefix}{text}", "text": text} for prefix in ("", "bad ") for text in HOSTILE.values()]
    folder = tmp_path / "r"
    folder.mkdir()
    from agentos.workflows.parallel import ParallelCoordinator

    ParallelCoordinator(2, journal=folder).execute_parallel(items, work, lambda item: item["id"])

    page = open_page(write(folder))
    page.locator("#items button.link", has_text="bad </script>").click()
    page.locator("dialog").wait_for()

    assert page.evaluate("() => window.broken") is None
    assert page.locator("img, h1:has-text('big')").count() == 0
    assert "</script><script>window.broken = true</script>" in page.locator("dialog h2").inner_text()
    shown = page.locator("body").inner_text()
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    assert "\u05e9\u05dc\u05d5\u05dd" in shown
    assert (folder.parent / "r.html").stat().st_size < 2_500_000
    assert [each for each in requests if each.startswith("http")] == []
    assert problems == []


def test_search_filters_sort_and_pages_find_items(sample: Path, open_page: OpenPage) -> None:
    page = open_page(write(sample))
    first = page.locator("#items tbody tr").first
    assert "bad-1" in first.inner_text()  # failed items come first

    page.fill("#search", "ITEM-11")
    assert page.locator("#items .summary").inner_text() == "8 of 120 items"
    page.fill("#search", "weather")  # a part of an error
    assert page.locator("#items tbody tr").count() == 1

    page.get_by_role("button", name="Clear").click()
    page.select_option("#filter-state", "failed")
    assert page.locator("#items .summary").inner_text() == "2 of 120 items"
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("button", name="Show items").first.click()
    assert page.locator("#items .summary").inner_text() == "1 of 120 items"

    page.get_by_role("button", name="Clear").click()
    page.get_by_role("button", name="Next").click()
    assert "page 2 of 3" in page.locator(".pager").inner_text()
    page.get_by_role("button", name="Duration").click()
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Duration")
    durations = page.evaluate("() => Array.from(agentosPage.table.rows, (row) => agentosPage.data.duration[row])")
    assert durations == sorted(durations)


def test_a_click_on_a_bar_opens_its_item_with_its_attempts(sample: Path, open_page: OpenPage) -> None:
    page = open_page(write(sample))
    place: Any = page.evaluate(
        """() => {
          const {timeline, data} = agentosPage, {lanes} = timeline;
          const row = data.find("bad-1"), bar = Array.from(lanes.item).indexOf(row);
          timeline.setView(lanes.start[bar] - 20, lanes.end[bar] + 30);
          const lane = lanes.lanes.find((each) => each.number === data.key[row]);
          const moment = (lanes.start[bar] + lanes.end[bar]) / 2;
          return {x: timeline.toX(moment, timeline.frame.clientWidth), y: lane.top + timeline.rowHeight / 2};
        }"""
    )
    canvas = page.locator("canvas")
    canvas.scroll_into_view_if_needed()

    canvas.hover(position=place)
    told = page.locator(".tip").inner_text()
    canvas.click(position=place)

    opened = page.locator("dialog h2").inner_text()
    assert opened in told
    page.locator("dialog .attempts tbody tr").first.wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="hidden")


def test_the_timeline_zooms_and_moves_by_keyboard_and_says_where_it_is(sample: Path, open_page: OpenPage) -> None:
    page = open_page(write(sample))
    view = "() => ({...agentosPage.timeline.view})"
    whole = page.evaluate(view)
    page.locator("canvas").focus()

    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    moved = page.evaluate(view)

    assert moved["end"] - moved["begin"] < whole["end"] - whole["begin"]
    assert "to" in page.locator(".readout").inner_text()
    page.keyboard.press("0")
    assert page.evaluate(view) == whole
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for()


def test_without_scripts_the_head_is_there(sample: Path, open_page: OpenPage) -> None:
    page = open_page(write(sample), ready="", java_script_enabled=False)

    shown = page.locator("body").inner_text()

    assert "118" in shown
    assert "finished" in shown
    assert "need JavaScript" in shown
    assert "KeyError" in shown
    assert page.locator("#timeline").is_hidden()


def test_killed_and_damaged_runs_have_a_page(tmp_path: Path, open_page: OpenPage, problems: list[str]) -> None:
    page = open_page(write(crashed(tmp_path / "killed")))
    assert "crashed" in page.locator(".badge").inner_text()

    folder = tmp_path / "damaged"
    run(folder, [f"item-{number}" for number in range(50)])
    flip_bit(folder / "journal.sqlite", (folder / "journal.sqlite").read_bytes().rindex(b"item-30"))
    page = open_page(write(folder))

    assert "The journal is damaged" in page.locator("[role=alert]").inner_text()
    assert problems == []


def test_an_empty_run_has_a_page(tmp_path: Path, open_page: OpenPage, problems: list[str]) -> None:
    run(tmp_path / "empty", [])

    page = open_page(write(tmp_path / "empty"))

    assert page.locator("#items .summary").inner_text() == "0 items"
    assert problems == []
