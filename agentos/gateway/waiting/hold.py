"""Ways to make a client wait: withheld headers, keep-alives, white space, or a polite refusal.

Each program has timers of its own, and gives up at another moment. The profile of a client is known by its headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ...agents.programs import PROGRAMS
from ..request_facts import RequestFacts
from ..routes import Operation, Route, WireForm


class HoldMethod(StrEnum):
    """What happens when a request has waited for a while."""

    WITHHOLD = "withhold"  # nothing: the client waits for the headers
    KEEP_ALIVE = "keep-alive"  # status 200 is sent, then events that the client ignores
    WHITE_SPACE = "white space"  # status 200 is sent, then blanks before the JSON
    REFUSE = "refuse"  # 429: the client comes again, and finds its place in line


@dataclass(frozen=True, slots=True)
class HoldPlan:
    """What to do, and after how many seconds of waiting for the first time."""

    method: HoldMethod
    after: float = 0.0
    keep_alive: bytes = b""
    every: float = 10.0  # seconds between two keep-alives


PLACE_KEPT: Final = 90.0  # seconds that the place of a client that left is kept
POLITE_DELAY: Final = 20.0  # the Retry-After of a polite refusal: SDKs come again by themselves up to 60 s
_STREAM_AFTER: Final = 25.0  # the shortest header timer known is 60 s
_JSON_AFTER: Final = 540.0  # that of most SDKs is 600 s
_GEMINI_JSON_AFTER: Final = 50.0
_COMMENT: Final = b":\n\n"
_KEEP_ALIVES: Final = {
    WireForm.ANTHROPIC: b'event: ping\ndata: {"type": "ping"}\n\n',
    WireForm.CHAT: _COMMENT,
    WireForm.GEMINI: _COMMENT,
    WireForm.RESPONSES: _COMMENT,
}
_WITHHOLD: Final = HoldPlan(HoldMethod.WITHHOLD)
# Programs that wait for the headers without end: codex has no such timer, and `agentos env` raises that of claude.
_PATIENT: Final = (*PROGRAMS["codex"].user_agents, *PROGRAMS["claude"].user_agents)
# It accepts white space before the JSON of an answer, and gives up early without it.
_TAKES_WHITE_SPACE: Final = PROGRAMS["gemini"].user_agents
# Others that give up early: after how many seconds.
_LEAVES_AFTER: Final = {
    agent: program.leaves_after
    for program in PROGRAMS.values()
    for agent in program.user_agents
    if program.leaves_after is not None
}
_MARGIN: Final = 0.8
_REPEATS_429: Final = tuple(
    agent for program in PROGRAMS.values() if program.repeats_429 for agent in program.user_agents
)


def find_final_status(headers: Mapping[str, str]) -> int:
    """Return the status of a refusal for good: one that the client of these headers does not repeat."""
    return 403 if headers.get("user-agent", "").startswith(_REPEATS_429) else 429


def choose_hold(route: Route, facts: RequestFacts, headers: Mapping[str, str]) -> HoldPlan:
    """Return how the client of this request is made to wait. ``x-agentos-hold`` overrides what its headers suggest."""
    wish = headers.get("x-agentos-hold", "").lower()
    agent = headers.get("user-agent", "")
    if wish == "late" or (not wish and agent.startswith(_PATIENT)):
        return _WITHHOLD
    if wish == "none":
        return HoldPlan(HoldMethod.REFUSE)
    after = 0.0 if wish == "early" else None
    if facts.stream and route.operation is Operation.GENERATE:
        return HoldPlan(HoldMethod.KEEP_ALIVE, _STREAM_AFTER if after is None else after, _KEEP_ALIVES[route.form])
    if route.form is WireForm.GEMINI:
        blanks = after is not None or agent.startswith(_TAKES_WHITE_SPACE)
        method = HoldMethod.WHITE_SPACE if blanks else HoldMethod.REFUSE
        return HoldPlan(method, _GEMINI_JSON_AFTER if after is None else after, b" ")
    if after is not None:
        return HoldPlan(HoldMethod.WHITE_SPACE, after, b" ")
    leaves_after = next((each for name, each in _LEAVES_AFTER.items() if agent.startswith(name)), None)
    return HoldPlan(HoldMethod.REFUSE, _JSON_AFTER if leaves_after is None else _MARGIN * leaves_after)
