"""Takes docs/report.png and docs/report-dark.png: `python examples/report_picture.py [FOLDER]`.

They show the report of a real run: `agentos demo`, killed half-way and continued. Playwright and Chromium are needed,
which `make pictures` brings.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for the browser of the tests

from tests.browser.programs import BROWSER_OPTIONS, find_browser  # noqa: E402

SIZE: Any = {"width": 1280, "height": 1010}
SCHEMES: Any = (("light", "report.png"), ("dark", "report-dark.png"))


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"
    with tempfile.TemporaryDirectory() as folder:
        shown = subprocess.run(
            [sys.executable, "-m", "agentos.cli", "demo"],
            env={**os.environ, "TMPDIR": folder},
            check=True,
            capture_output=True,
            text=True,
        )
        named = re.search(r"to open in a browser: (.+)", shown.stdout)
        assert named is not None
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find_browser(), args=list(BROWSER_OPTIONS))
            for scheme, name in SCHEMES:
                page = browser.new_page(viewport=SIZE, color_scheme=scheme)
                page.goto(Path(named[1]).as_uri())
                page.wait_for_selector("html[data-ready]")
                page.screenshot(path=target / name)
            browser.close()


if __name__ == "__main__":
    main()
