"""For all tests."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings


def stop_ignoring_signals() -> None:
    """Give the processes that tests start the usual signals, although a background job is started with them ignored.

    `make test &` ignores SIGINT and SIGQUIT, nohup ignores SIGHUP, and a child inherits what its parent ignores, but
    not what its parent handles. A hangup still ends no test run: that is what nohup is for.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)


stop_ignoring_signals()  # in the controller of xdist and in each of its workers

# A busy machine is not a fault: 0.2 s for one example, which is the default, are easily lost there.
settings.register_profile("at any pace", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at any pace")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test has logged travels from the process that ran it as UTF-8, which item ids of some tests are not."""
    report = yield
    report.sections = [(title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections]
    return report
