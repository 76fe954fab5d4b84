"""State that the parts of one run share: its lock, items, clock, idle workers and stop flags."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...pool.protocols import RunPool
from ...pool.requests import NO_LABELS, PLAIN, Labels, LeaseRequest
from ...util.clock import Clock
from ..context import HttpClients
from ..core.item_scheduler import ItemScheduler
from ..core.network_watch import NetworkWatch
from ..options import RunOptions
from ..results import ProgressStats
from .idle_workers import IdleWorkers


class RunState:
    """State that every part of a run reads. ``lock`` guards the scheduler and the counts.

    *pool* grants leases for items; *secrets* has the secrets to redact, also where workers lease for themselves. Only
    credentials with *labels* serve the run.
    """

    __slots__ = (
        "clients",
        "clock",
        "closing",
        "idle",
        "is_over",
        "lock",
        "may_park",
        "network",
        "on_room",
        "options",
        "pause_reason",
        "plain_request",
        "pool",
        "scheduler",
        "secrets",
        "stats",
        "suspended",
    )

    def __init__(
        self,
        options: RunOptions,
        stats: ProgressStats,
        clock: Clock,
        scheduler: ItemScheduler,
        *,
        pool: RunPool | None,
        secrets: RunPool | None,
        labels: Labels = NO_LABELS,
        clients: HttpClients | None = None,
    ) -> None:
        self.options = options
        self.stats = stats
        self.clock = clock
        self.scheduler = scheduler
        self.pool = pool
        self.secrets = secrets
        self.plain_request = LeaseRequest(labels=labels) if labels else PLAIN
        self.clients = clients  # for ``context.http``
        self.lock = threading.Lock()
        self.idle = IdleWorkers()
        self.network = NetworkWatch()
        # The run ends if the limits last longer than it may wait.
        self.may_park = options.max_wait is not None or options.deadline is not None
        self.closing = False  # nothing more will start
        self.is_over = False  # nothing runs, and all results are published or given up
        self.pause_reason: str | None = None  # why nothing may start for now
        self.suspended = False  # by SIGTSTP, until the stopped time is subtracted from the attempts' durations
        self.on_room: Callable[[], object] = int  # notifies a pushed input that there is room

    def masked(self, text: str) -> str:
        """Return *text* without secrets."""
        return text if self.secrets is None else self.secrets.masked(text)
