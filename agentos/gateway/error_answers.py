"""The gateway's answers when no key, no provider or no time is left; and what an error says of its item."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from ..errors import AgentOSError, ForeignHost, NeverFits, NoCredentialAvailable, NoUsableCredential
from ..providers.answers.context_length import exceeds_context
from ..providers.classify import classify
from ..providers.signal import Event
from ..providers.wire_verdict import WireVerdict
from .refusals import GatewayRefusal
from .waiting.hold import POLITE_DELAY

log = logging.getLogger("agentos")

_WORDS: Final = {
    Event.LIMITED: "limited",
    Event.RAMP: "limited",
    Event.PARKED: "parked",
    Event.MONEY_GONE: "spent",
    Event.KEY_DEAD: "dead",
    Event.NOT_ENTITLED: "dead",
    Event.BUSY: "busy",
    Event.NETWORK: "network",
}
POLITE_REFUSAL: Final = GatewayRefusal(
    429,
    "agentos: all keys are busy or cooling down; come again, your place in line is kept",
    retry_after=POLITE_DELAY,
    is_final=False,
    why="limited",
)


def build_parked_refusal(wait: float, resets_at: float | None, status: int = 429) -> GatewayRefusal:
    """Return the refusal of a request whose key opens only after *wait* seconds, which is too late."""
    until = ""
    if resets_at is not None:
        until = f" until {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(resets_at))}"
    return GatewayRefusal(
        status,
        f"agentos: every key for this request is parked{until}",
        retry_after=None if resets_at is None else wait,
        resets_at=resets_at,
        why="parked",
    )


def explain_error(
    error: Exception, provider: str, masked: Callable[[str], str], wall: float, *, is_transport: bool
) -> GatewayRefusal:
    """Return the answer to a request that failed before the provider answered it."""
    if isinstance(error, NoCredentialAvailable):
        wait = error.next_free_in
        return GatewayRefusal(
            429,
            f"agentos: no key became free in {error.waited:.0f} s",
            retry_after=POLITE_DELAY if wait is None else wait,
            resets_at=None if wait is None else wall + wait,
            is_final=False,
            why="limited",
        )
    if isinstance(error, NoUsableCredential):
        return GatewayRefusal(403, f"agentos: {masked(str(error))}", why="dead")
    if isinstance(error, ForeignHost):
        return GatewayRefusal(403, f"agentos: no key for {provider}: {masked(str(error))}", why="no key")
    if isinstance(error, NeverFits):
        return GatewayRefusal(413, f"agentos: {masked(str(error))}", why="request")
    if isinstance(error, AgentOSError):
        return GatewayRefusal(503, f"agentos: {masked(str(error))}", is_final=False, why="network")
    name = type(error).__name__
    if is_transport:
        slow = "Timeout" in name
        what = "the provider did not answer" if slow else "no answer of the provider"
        return GatewayRefusal(504 if slow else 502, f"agentos: {what} ({name})", is_final=False, why="network")
    log.error("[GATEWAY] a request failed: %s", name, exc_info=log.isEnabledFor(logging.DEBUG))
    return GatewayRefusal(500, f"agentos: an internal error ({name})", is_final=False, why="network")


def judge_error(
    status: int, headers: Any, body: bytes, *, provider: str, model: str | None, wall: float
) -> WireVerdict:
    """Return what a provider's error says of the item that made the call."""
    signal = classify(status, headers, body, now=wall, provider=provider, model=model)
    until = None if signal.delay is None else wall + signal.delay
    if signal.event in (Event.CALLER, Event.NEVER_FITS) and exceeds_context(status, body):
        return WireVerdict("context", status, model)
    return WireVerdict(_WORDS.get(signal.event, "request"), status, model, until)
