"""Collect the usage of one attempt, from all that report it."""

from __future__ import annotations

from typing import Any

from .usage import NO_USAGE, Usage

# No call uses more. A larger figure is wrong.
_MOST = 10**9

NOTHING_USED: dict[Any, Usage] = {}  # never changed


class UsageLog:
    """What was reported about an attempt's usage, in order; threads and tasks may add to it at once.

    A report is about a lease, known by its token, or about none. Calls add up. A total that the worker states replaces
    what was reported about the lease before it.
    """

    __slots__ = ("_reports",)

    def __init__(self) -> None:
        self._reports: list[tuple[int | None, str | None, Usage, bool]] = []

    def add_call(self, lease: int | None, credential: str | None, usage: Usage) -> None:
        """Add the usage of one call, made with this lease of *credential*."""
        if 0 < usage.total <= _MOST:
            self._reports.append((lease, credential, usage, False))

    def set_total(self, lease: int | None, credential: str | None, usage: Usage) -> None:
        """Set the usage of all calls made with this lease so far."""
        if usage.total <= _MOST:
            self._reports.append((lease, credential, usage, True))

    def __bool__(self) -> bool:
        return bool(self._reports)

    def take(self) -> dict[str | None, Usage]:
        """Return the usage by credential, and forget it: a report that comes later is returned by the next call."""
        if not self._reports:
            return NOTHING_USED
        reports, self._reports = self._reports, []
        by_lease: dict[tuple[int | None, str | None], Usage] = {}
        for lease, credential, usage, is_total in reports:
            before = NO_USAGE if is_total else by_lease.get((lease, credential), NO_USAGE)
            by_lease[lease, credential] = before + usage
        by_credential: dict[str | None, Usage] = {}
        for (_, credential), usage in by_lease.items():
            if usage:
                by_credential[credential] = by_credential.get(credential, NO_USAGE) + usage
        return by_credential
