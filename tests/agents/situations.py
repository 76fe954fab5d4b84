"""What a provider can do to an agent, per style of answer, as scripts for the simulator."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from agentos.simulator import Scripted

FOREVER = 1e9
RESET_IN = 7_200  # seconds until the usage limit of a situation ends


def _all(status: int | str, body: Mapping[str, Any] | None = None, **headers: str) -> tuple[Scripted, ...]:
    """Answer every call alike."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (Scripted(status, at=0.0, until=FOREVER, headers=named, body=body),)  # type: ignore[arg-type]


def _anthropic(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def _openai(code: str | None, message: str, kind: str = "invalid_request_error", **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


def _gemini(code: int, status: str, message: str, *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def _quota(metric: str, delay: int) -> list[dict[str, Any]]:
    google = "type.googleapis.com/google.rpc."
    return [
        {"@type": f"{google}QuotaFailure", "violations": [{"quotaMetric": metric, "quotaId": metric}]},
        {"@type": f"{google}RetryInfo", "retryDelay": f"{delay}s"},
    ]


_FLOOD = "Rate limit reached for requests."
_PER_MINUTE = "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"
_PER_DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"
_NO_BILLING = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "BILLING_DISABLED",
    "domain": "googleapis.com",
}


def build_script(style: str, situation: str, *, reset_in: int = RESET_IN) -> tuple[Scripted, ...]:
    """Return the script of the situation; empty for ``done``."""
    if situation in ("done", "killed"):
        return ()
    if situation == "cut":
        return _all("cut")
    reset = int(time.time()) + reset_in
    return getattr(_Styles, style)(situation, reset)  # type: ignore[no-any-return]


class _Styles:
    @staticmethod
    def anthropic(situation: str, reset: int) -> tuple[Scripted, ...]:
        flood = _anthropic("rate_limit_error", _FLOOD)
        window = {f"anthropic_ratelimit_unified_{name}": value for name, value in _unified(reset).items()}
        return {
            "limited-short": (Scripted(429, call=1, headers={"retry-after": "1"}, body=flood),),
            "limited-until": _all(429, flood, retry_after=str(reset - int(time.time())), **window),
            "limited-long": _all(429, flood, retry_after="3600"),
            "limited-unstated": _all(429, flood),
            "usage-limit": _all(429, flood, retry_after=str(reset - int(time.time())), **window),
            "rejected": _all(401, _anthropic("authentication_error", "invalid x-api-key")),
            "spent": _all(
                400,
                _anthropic("invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
            ),
            "overloaded": _all(529, _anthropic("overloaded_error", "Overloaded")),
            "context": _all(
                400, _anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
            ),
        }[situation]

    @staticmethod
    def openai(situation: str, reset: int) -> tuple[Scripted, ...]:
        flood = _openai("rate_limit_exceeded", _FLOOD, "requests")
        return {
            "limited-short": (Scripted(429, call=1, headers={"retry-after": "1"}, body=flood),),
            "limited-until": _all(429, flood, retry_after=str(reset - int(time.time()))),
            "limited-long": _all(429, flood, retry_after="3600"),
            "limited-unstated": _all(429, flood),
            "usage-limit": _all(
                429,
                _openai(
                    None,
                    "The usage limit has been reached",
                    "usage_limit_reached",
                    plan_type="plus",
                    resets_at=reset,
                    resets_in_seconds=reset - int(time.time()),
                ),
                x_codex_primary_used_percent="100",
                x_codex_primary_window_minutes="300",
                x_codex_primary_reset_at=str(reset),
            ),
            "rejected": _all(401, _openai("invalid_api_key", "Incorrect API key provided.")),
            "spent": _all(429, _openai("insufficient_quota", "You exceeded your current quota.", "insufficient_quota")),
            "overloaded": _all(503, _openai(None, "The server is overloaded.", "server_error")),
            "context": _all(
                400, _openai("context_length_exceeded", "Your input exceeds the context window of this model.")
            ),
        }[situation]

    @staticmethod
    def gemini(situation: str, reset: int) -> tuple[Scripted, ...]:
        left = reset - int(time.time())
        return {
            "limited-short": (
                Scripted(429, call=1, body=_gemini(429, "RESOURCE_EXHAUSTED", _FLOOD, *_quota(_PER_MINUTE, 1))),
            ),
            "limited-long": _all(
                429, _gemini(429, "RESOURCE_EXHAUSTED", _FLOOD, *_quota(_PER_MINUTE, 3600)), retry_after="3600"
            ),
            "limited-until": _all(429, _gemini(429, "RESOURCE_EXHAUSTED", _FLOOD, *_quota(_PER_MINUTE, left))),
            "limited-unstated": _all(429, _gemini(429, "RESOURCE_EXHAUSTED", _FLOOD)),
            "usage-limit": _all(429, _gemini(429, "RESOURCE_EXHAUSTED", _FLOOD, *_quota(_PER_DAY, left))),
            "rejected": _all(401, _gemini(401, "UNAUTHENTICATED", "API key not valid.")),
            "spent": _all(403, _gemini(403, "PERMISSION_DENIED", "This API method requires billing.", _NO_BILLING)),
            "overloaded": _all(503, _gemini(503, "UNAVAILABLE", "The model is overloaded.")),
            "context": _all(
                400, _gemini(400, "INVALID_ARGUMENT", "The input token count (1200000) exceeds the maximum (1048576).")
            ),
        }[situation]


def _unified(reset: int) -> dict[str, str]:
    return {
        "status": "rejected",
        "reset": str(reset),
        "representative_claim": "five_hour",
        "5h_status": "rejected",
        "5h_reset": str(reset),
        "5h_utilization": "1",
    }


SITUATIONS = (
    "done",
    "limited-short",
    "limited-long",
    "limited-unstated",
    "usage-limit",
    "rejected",
    "spent",
    "overloaded",
    "context",
    "cut",
    "killed",
)
