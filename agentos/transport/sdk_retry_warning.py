"""Warn if an SDK retries by itself: the pool schedules retries better, and two layers multiply them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from types import FrameType

from .auth_header import RETRIES

log = logging.getLogger("agentos")

_DEEPEST = 40  # frames searched above the transport


class SdkRetryWarning:
    """Warn once that the client of a transport has its own retries enabled."""

    __slots__ = ("_warned",)

    def __init__(self) -> None:
        self._warned = False

    def check_request(self, headers: Mapping[bytes, bytes]) -> None:
        """Check the header in which the clients of openai and anthropic count their retries."""
        if not self._warned and headers.get(RETRIES, b"0") != b"0":
            self._warn("max_retries=0")

    def check_callers(self) -> None:
        """Search the call stack for a retry loop before a failure is returned: other clients mark no requests."""
        if self._warned:
            return
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_DEEPEST):
            if frame is None:
                return
            advice = _find_retries(frame)
            if advice:
                self._warn(advice)
                return
            frame = frame.f_back

    def _warn(self, instead: str) -> None:
        self._warned = True
        log.warning(
            "[COORDINATOR] the client of this transport retries failed calls by itself: the pool waits for rate limits "
            "and the run retries other errors, so disable the client's retries (%s)",
            instead,
        )


def _find_retries(frame: FrameType) -> str:
    """Return how to disable the retries that *frame* makes; empty if it makes none."""
    module = frame.f_globals.get("__name__", "")
    if module == "mistralai.client.utils.retries" and frame.f_code.co_name.startswith("retry_with_backoff"):
        return 'retry_config with strategy "none"'
    if module.startswith("tenacity"):
        stop = getattr(frame.f_locals.get("self"), "stop", None)
        if stop is not None and getattr(stop, "max_attempt_number", 2) > 1:
            return "for google-genai: no retry_options, or attempts=1"
    return ""
