"""The live page in a real browser: items appear as they end, logs grow, the token stays out of the address bar."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.runs.journal import Journal, encode_row

from ..page.live.watching import Watching
from ..runs.sample_runs import run
from .conftest import OpenPage, find_barriers


class Running:
    """A run that goes on as the test says, in a journal that is open."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._journal = Journal.open(folder, worker="work", total=50)
        self._writer = self._journal.writer(on_committed=_ignore, on_trouble=_ignore, on_lost=_ignore)
        self._token = 0

    def put(self, kind: str, item: str, **more: Any) -> None:
        self._token += 1
        self._writer.put(encode_row(time.time(), kind, item, self._token, 1, "key-1", 0.2, **more))
        assert self._writer.flush(60)

    def log(self, item: str, text: str) -> None:
        logs = self.folder / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        with open(logs / f"{item}.log", "a", encoding="utf-8") as file:
            file.write(text)
        (logs / f"{item}.log").chmod(0o600)

    def close(self) -> None:
        self._journal.close(60)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path / "lively")
    made.put("done", "first", value='"tea"', content='"first"')
    yield made
    made.close()


def test_an_item_that_ends_appears_on_the_page(running: Running, open_page: OpenPage, problems: list[str]) -> None:
    with Watching(running.folder, chosen="lively") as watching:
        page = open_page(watching.address)
        running.put("failed", "second", error="<b>no</b> tea", detail='{"type": "TeaError"}')

        page.locator("#items tbody tr", has_text="second").wait_for()
        row = page.locator("#items tbody tr", has_text="second").inner_text()
        page.locator(".card", has_text="Failed").locator(".value", has_text="1").wait_for()
        page.close()

    assert "<b>no</b> tea" in row
    assert problems == []


def test_the_token_leaves_the_address_bar_and_a_reload_still_works(running: Running, open_page: OpenPage) -> None:
    with Watching(running.folder, chosen="lively") as watching:
        page = open_page(watching.address)
        assert page.url == watching.address.partition("#")[0]
        assert page.evaluate("() => document.cookie") == ""

        page.reload()
        page.wait_for_selector("html[data-ready]")

        assert "first" in page.locator("#items tbody").inner_text()
        page.close()


def test_without_the_token_the_page_says_what_to_do(running: Running, open_page: OpenPage) -> None:
    with Watching(running.folder) as watching:
        page = open_page(watching.address.partition("#")[0])

        assert "open the address that agentos watch printed" in page.locator("[role=alert]").inner_text()
        assert "first" not in page.locator("body").inner_text()
        page.close()


def test_the_log_of_a_running_item_is_followed(running: Running, open_page: OpenPage) -> None:
    running.put("start", "slow")
    running.log("slow", "one\n")
    with Watching(running.folder, chosen="lively") as watching:
        page = open_page(watching.address)
        page.locator("#items button.link", has_text="slow").click()
        page.locator("dialog .log", has_text="one").wait_for()

        running.log("slow", "two\n")

        page.locator("dialog .log", has_text="two").wait_for()
        page.close()


def test_all_runs_are_listed_and_one_leads_back(tmp_path: Path, running: Running, open_page: OpenPage) -> None:
    run(tmp_path / "night", ["a", "b"])
    with Watching(running.folder, tmp_path / "night") as watching:
        page = open_page(watching.address)
        assert page.locator(".runs tbody tr").count() == 2

        page.locator(".runs button", has_text="night").click()
        page.locator("h1", has_text="night").wait_for()
        page.get_by_role("link", name="All runs").click()

        page.locator("h1", has_text="Runs").wait_for()
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_live_page_has_no_serious_barrier(running: Running, open_page: OpenPage, scheme: str) -> None:
    with Watching(running.folder) as watching:
        page = open_page(watching.address, color_scheme=scheme)
        assert find_barriers(page) == []

        page.locator(".runs button").first.click()
        page.wait_for_selector("html[data-ready=true]")

        assert find_barriers(page) == []
        page.close()


def test_several_pages_follow_one_run(running: Running, open_page: OpenPage, problems: list[str]) -> None:
    with Watching(running.folder, chosen="lively") as watching:
        pages = [open_page(watching.address) for _ in range(3)]

        for number in range(20):
            running.put("done", f"item-{number}", value='"x"')

        for page in pages:
            page.locator("#items .summary", has_text="21 items").wait_for()
            assert page.evaluate("() => agentosPage.data.countStates()[2]") == 21
            page.close()

    assert problems == []


def _ignore(_: object) -> None:
    pass
