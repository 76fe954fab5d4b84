"""For all tests."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is not a fault: 0.2 s for one example, which is the default, are easily lost there.
settings.register_profile("at any pace", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at any pace")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test has logged travels from the process that ran it as UTF-8, which item ids of some tests are not."""
    report = yield
    report.sections = [(title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections]
    return report
