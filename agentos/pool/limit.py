"""A limit as the user states it: an amount of one dimension per window."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .core.cost import DIMENSIONS

_HOUR = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Limit:
    """*amount* of *dimension* per *per* seconds, or per ``"day"``.

    A limit in seconds refills continuously: in any interval of w seconds at most ``burst + rate * w`` is admitted,
    where ``burst`` defaults to the amount. ``window="sliding"`` is the strict form: never more than the amount in any
    interval of *per* seconds. ``per="day"`` counts from one reset to the next, at ``resets_at`` (``"HH:MM"``) in time
    zone ``tz``. With ``model`` the limit is for that model family only: a name (its dated snapshots are included) or a
    pattern such as ``"claude-sonnet-*"``.
    """

    dimension: str
    amount: float
    per: float | Literal["day"] = 60.0
    burst: float | None = None
    window: Literal["continuous", "sliding"] | None = None
    resets_at: str | None = None
    tz: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.dimension not in DIMENSIONS:
            raise ValueError(f"dimension must be one of {', '.join(DIMENSIONS)}, not {self.dimension!r}")
        _require_positive("amount", self.amount)
        if self.model is not None and not (isinstance(self.model, str) and self.model):
            raise ValueError("model must be the name of a model family, or left out for all models")
        if self.per == "day":
            self._check_calendar()
        else:
            self._check_rolling()

    def _check_calendar(self) -> None:
        for name in ("burst", "window"):
            if getattr(self, name) is not None:
                raise ValueError(f'{name} does not go with per="day": a day\'s amount may be used at any time of it')
        if _HOUR.fullmatch(self.resets_at or "00:00") is None:
            raise ValueError(f'resets_at must be an hour of the day such as "07:00", not {self.resets_at!r}')
        if self.dimension == "requests" and self.amount < 1:
            raise ValueError("amount must be at least 1 for requests, or no request could ever start")
        self.zone()

    def _check_rolling(self) -> None:
        _require_positive("per", self.per)
        for name in ("resets_at", "tz"):
            if getattr(self, name) is not None:
                raise ValueError(f'{name} goes with per="day" only')
        if self.window not in (None, "continuous", "sliding"):
            raise ValueError(f'window must be "continuous" or "sliding", not {self.window!r}')
        if self.burst is not None:
            _require_positive("burst", self.burst)
            if self.window == "sliding":
                raise ValueError('burst does not go with window="sliding", which never admits more than amount')
            if self.dimension == "requests" and self.burst < 1:
                raise ValueError("burst must be at least 1 for requests, or no request could ever start")
        if self.dimension == "requests" and self.amount < 1 and (self.window == "sliding" or self.burst is None):
            raise ValueError("amount must be at least 1 for requests; for a slower rate make per longer")

    @property
    def largest(self) -> float:
        """The largest cost a single request may have."""
        return self.amount if self.burst is None else self.burst

    def reset_time(self) -> datetime.time:
        """Return the time of day at which a day limit resets, in :meth:`zone`."""
        hours, minutes = (self.resets_at or "00:00").split(":")
        return datetime.time(int(hours), int(minutes))

    def zone(self) -> datetime.tzinfo:
        """Return the time zone of a day limit; UTC by default."""
        if self.tz is None or self.tz == "UTC":
            return datetime.UTC
        try:
            return ZoneInfo(self.tz)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"tz {self.tz!r} is not a time zone this machine knows; "
                'use a name such as "America/Los_Angeles", or install the tzdata package'
            ) from None


def _require_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a number above zero, not {value!r}")
