"""The page in a real browser, behind ``make test-browser``: it needs Chromium, so these are never named test_*."""
