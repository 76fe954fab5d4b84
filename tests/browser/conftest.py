"""A real browser for the tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .programs import BROWSER_OPTIONS, find_axe, find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

READY = "html[data-ready]"
PATIENCE = 60_000  # milliseconds: only what hangs is to be ended


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # only make browser installs it

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=find_browser(), args=list(BROWSER_OPTIONS))
        yield launched
        launched.close()


@pytest.fixture
def problems() -> list[str]:
    """What the browser complained of."""
    return []


@pytest.fixture
def requests() -> list[str]:
    """What the pages of the test have requested, the page itself included."""
    return []


OpenPage = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser, problems: list[str], requests: list[str]) -> Iterator[OpenPage]:
    contexts = []

    def open_page(address: str | Path, *, ready: str = READY, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1360, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address if isinstance(address, str) else address.as_uri())
        if ready:
            page.wait_for_selector(ready)
        return page

    yield open_page
    for context in contexts:
        context.close()


def find_barriers(page: Page) -> list[str]:
    """What axe-core calls serious or critical."""
    page.evaluate(find_axe().read_text(encoding="utf-8"))
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [
        f"{each['id']}: {node['html'][:200]}: {node.get('failureSummary', '')[:300]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]
