"""Read the structured output of agent programs: common parts of all readers.

A reader looks at the fields of top-level events alone. What the model wrote, what tools printed and the words of a
message are text inside such events, and are only ever shown or passed on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..costs.usage import Usage, count_tokens
from ..providers import classify
from ..providers.answers.context_length import exceeds_context
from ..providers.signal import LONGEST_DELAY, PARKED_FROM, Event
from ..runs.agents.agent_protocol import AgentReport, Ending
from ..runs.agents.agent_verdict import name_ending
from ..util.sanitize import make_printable, shorten

_WIDEST = 160
_LONGEST_ANSWER = 20_000
_MOST_LINES = 3
_OVERLOADED = 500
# Statuses that say by themselves what happened; a 400 may be anything.
_STATUSES = {401: Ending.REJECTED, 402: Ending.SPENT, 403: Ending.REJECTED, 429: Ending.LIMITED}


class EventReader:
    """Base of the readers of programs that print one JSON object per line."""

    def __init__(self, environ: Mapping[str, str], resumed: str | None = None) -> None:
        self.environ = environ  # the program's, in which the place of its files is
        self.resumed = resumed
        self.session: str | None = None
        self.has_begun = False  # it is in its session, though it may not name it
        self.answer: str | None = None
        self.ending: Ending | None = None
        self.reason = ""
        self.until: float | None = None
        self.turns: int | None = None
        self.usage: Usage | None = None
        self.usage_is_total = False  # of the whole session, not of this process alone
        self.cost: float | None = None
        self.model: str | None = None

    def feed(self, line: str) -> Sequence[str]:
        """Read one line, and return what to show of it."""
        event = parse_object(line)
        if event is None:
            return [line] if line.strip() else []
        return self.on_event(event)

    def on_event(self, event: dict[str, Any]) -> Sequence[str]:
        """Read one event, and return what to show of it."""
        raise NotImplementedError

    def finish(self, code: int | None) -> AgentReport:
        """Return the report after the end of the process."""
        failed = self.ending is not Ending.DONE and code != 0
        begun = self.has_begun or self.session is not None
        return AgentReport(
            ending=self.ending,
            reason=self.reason,
            until=self.until,
            answer=self.answer,
            session=self.session,
            turns=self.turns,
            usage=self.usage,
            usage_is_total=self.usage_is_total,
            cost=self.cost,
            model=self.model,
            resume_refused=self.resumed is not None and not begun and failed and (code or 0) > 0,
        )

    def set_status(self, status: int | None) -> None:
        """Take the ending from the HTTP status of the last call, if it decides."""
        if status is None:
            return
        found = _STATUSES.get(status)
        if found is None and status >= _OVERLOADED:
            found = Ending.OVERLOADED
        if found is not None:
            self.ending = found

    def set_answer_error(self, status: int | None, headers: object, body: object, provider: str | None = None) -> None:
        """Take ending and end of the limit from a provider's answer, by the rules of the pool."""
        now = time.time()
        document = parse_object(body) if isinstance(body, str) else body if isinstance(body, dict) else None
        error = get_object(document or {}, "error")
        if error.get("type") == "usage_limit_reached":  # of a subscription, or of the gateway; with its reset
            self.ending, self.until = Ending.PARKED, get_instant(error, "resets_at", now=now)
            return
        signal = classify(status, headers, body, now=now, provider=provider)
        ending = name_ending(signal.event)
        if signal.event is Event.NEVER_FITS and status == 429:
            ending = Ending.LIMITED
        elif ending is Ending.FAILED and status is not None and exceeds_context(status, body):
            ending = Ending.CONTEXT
        if ending is Ending.DONE:
            return
        self.ending = ending
        if ending not in (Ending.LIMITED, Ending.PARKED):
            return
        self.until = None if signal.delay is None else now + signal.delay
        if self.until is not None and self.until - now > PARKED_FROM:
            self.ending = Ending.PARKED


class PlainReader(EventReader):
    """Reads a program without structure: its output is shown, and its end of it is the answer. It never says more."""

    def feed(self, line: str) -> Sequence[str]:
        """Keep the last lines as the answer."""
        self.answer = (f"{self.answer}\n{line}" if self.answer else line)[-_LONGEST_ANSWER:]
        return [line]


def parse_object(line: str) -> dict[str, Any] | None:
    """Return the JSON object of a line; None if the line is something else."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def get_object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that is an object; an empty one if it is not."""
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


def get_list(fields: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that is a list; an empty one if it is not."""
    found = fields.get(name)
    return found if isinstance(found, list) else []


def get_text(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is text and not empty; else None."""
    found = fields.get(name)
    return found if isinstance(found, str) and found else None


def get_whole(fields: Mapping[str, Any], name: str) -> int | None:
    """Return a field that is a whole number of at least 0; else None."""
    found = fields.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def get_amount(fields: Mapping[str, Any], name: str) -> float | None:
    """Return a field that is a number of at least 0; else None."""
    found = fields.get(name)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < math.inf:
        return None
    return float(found)


def get_instant(fields: Mapping[str, Any], name: str, *, now: float) -> float | None:
    """Return a field that is an instant in epoch seconds and not absurdly far away; else None."""
    found = get_amount(fields, name)
    return None if found is None or abs(found - now) > LONGEST_DELAY else found


def count(fields: Mapping[str, Any], name: str) -> int:
    """Return a field that is a number of tokens; 0 if it is not."""
    return count_tokens(fields.get(name)) or 0


def show_text(text: object, prefix: str = "") -> list[str]:
    """Return the first lines of a text, for people."""
    if not isinstance(text, str):
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    shown = [prefix + shorten(make_printable(line[: 8 * _WIDEST]), _WIDEST) for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        shown.append(f"{prefix}... {len(lines) - _MOST_LINES} more lines")
    return shown


def show_tool(name: object, given: object) -> list[str]:
    """Return one line about a call of a tool: its name and the most telling of its arguments."""
    words = [word for word in given.values() if isinstance(word, str)] if isinstance(given, dict) else []
    if isinstance(given, str):
        words = [given]
    text = f"> {name}" + (f": {words[0].strip().splitlines()[0]}" if words and words[0].strip() else "")
    return [shorten(make_printable(text[: 8 * _WIDEST]), _WIDEST)]
