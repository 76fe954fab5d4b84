"""A place that messages are sent to: a command, or a webhook whose address is a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# What is told: the run ended by itself; it was stopped by a signal; it halted early; all keys are dead or spent; all
# keys cool down for long; nothing has finished for long; its process is gone.
KINDS: Final = ("ended", "stopped", "halted", "keys", "cooling", "stuck", "crashed")
FORMATS: Final = ("json", "slack", "discord", "teams")
LONG: Final = 1800.0  # seconds after which cooling down, or no progress, is news


@dataclass(frozen=True, slots=True, repr=False)
class NotifyTarget:
    """One target. ``command`` is run without a shell; else ``url`` is posted to, in one of FORMATS."""

    command: tuple[str, ...] = ()
    url: str = ""
    format: str = "json"
    on: tuple[str, ...] = KINDS
    cooling_after: float = LONG
    stuck_after: float = LONG

    def __repr__(self) -> str:
        """Return the target without its address."""
        return f"<NotifyTarget {self.describe()}>"

    def describe(self) -> str:
        """Return a name for logs."""
        return f"command {self.command[0]}" if self.command else f"{self.format} webhook"

    def to_json(self) -> dict[str, Any]:
        """Return all fields, the address too: for the pipe to the notifier only."""
        return {
            "command": list(self.command),
            "url": self.url,
            "format": self.format,
            "on": list(self.on),
            "cooling_after": self.cooling_after,
            "stuck_after": self.stuck_after,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> NotifyTarget:
        """Return the target that ``to_json`` wrote."""
        return cls(
            tuple(fields["command"]),
            fields["url"],
            fields["format"],
            tuple(fields["on"]),
            fields["cooling_after"],
            fields["stuck_after"],
        )
