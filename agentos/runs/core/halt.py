"""Parse and evaluate halt clauses in GNU parallel's syntax: ``"soon,fail=10%"``, ``"now,fail=1"``, ``"never"``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_GRAMMAR = re.compile(r"(?P<when>now|soon),(?P<what>fail|success|done)=(?P<number>\d+(?:\.\d+)?)(?P<percent>%?)")

# Among fewer finished items, a few early failures are already a large percentage.
_ENOUGH_FOR_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Halt:
    """A halt clause: stop once enough items failed, succeeded or finished; ``now`` cancels running attempts.

    A percentage is of the items finished so far, from the hundredth on; besides, it is reached as soon as more than
    that part of all items is counted, if their number is known.
    """

    now: bool
    counted: str
    number: float
    percent: bool

    def reached(self, done: int, failed: int, total: int | None = None) -> bool:
        """Return whether the clause is reached; *total* is the number of all items, if known."""
        finished = done + failed
        count = {"fail": failed, "success": done, "done": finished}[self.counted]
        if not self.percent:
            return count >= self.number
        if finished >= _ENOUGH_FOR_PERCENT and count * 100 >= self.number * finished:
            return True
        return total is not None and count * 100 > self.number * total

    def __str__(self) -> str:
        return f"{'now' if self.now else 'soon'},{self.counted}={self.number:g}{'%' if self.percent else ''}"


def parse_halt(text: str | None) -> Halt | None:
    """Parse a halt clause; None and ``"never"`` give None. Raises ValueError for any other text."""
    if text is None or text == "never":
        return None
    match = _GRAMMAR.fullmatch(text) if isinstance(text, str) else None
    if match is None or float(match["number"]) <= 0 or (match["percent"] and float(match["number"]) > 100):
        raise ValueError(
            f"halt must be 'never' or like 'soon,fail=10%' or 'now,fail=1' "
            f"(now or soon; fail, success or done; a number or a percentage), not {text!r}"
        )
    if not match["percent"] and "." in match["number"]:
        raise ValueError(f"halt must count whole items, or end in %, not {text!r}")
    return Halt(match["when"] == "now", match["what"], float(match["number"]), bool(match["percent"]))
