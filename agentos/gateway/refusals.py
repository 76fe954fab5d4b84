"""Errors of the gateway in the form that each provider's clients understand, as an answer and inside a stream."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import Any

from .routes import WireForm

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    503: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OPENAI = {
    400: ("invalid_request_error", "invalid_request"),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", "permission_denied"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}
_GEMINI = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


@dataclass(frozen=True, slots=True)
class GatewayRefusal:
    """An error that the gateway itself gives. *is_final*: a retry does not help, and the client is told so."""

    status: int
    message: str
    retry_after: float | None = None  # seconds
    is_final: bool = True
    resets_at: float | None = None  # epoch seconds
    why: str = "refused"  # for the record: limited, parked, dead, ...

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers that say whether and when to try again."""
        found = [("x-should-retry", "false" if self.is_final else "true")]
        if self.retry_after is not None:
            found.append(("retry-after", str(max(1, math.ceil(self.retry_after)))))
        return found

    def body(self, form: WireForm | None) -> bytes:
        """Return the error as JSON in the provider's form."""
        return json.dumps(self._document(form)).encode()

    def _document(self, form: WireForm | None) -> dict[str, Any]:
        more = self._reset_fields()
        if form is WireForm.ANTHROPIC:
            kind = _ANTHROPIC.get(self.status, "api_error")
            return {"type": "error", "error": {"type": kind, "message": self.message, **more}}
        if form is WireForm.GEMINI:
            code = _GEMINI.get(self.status, "INTERNAL")
            error: dict[str, Any] = {"code": self.status, "message": self.message, "status": code}
            if self.status == 429 and self.retry_after is not None:
                delay = f"{max(1, math.ceil(self.retry_after))}s"
                error["details"] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
            if self.status == 429 and self.is_final:  # by this word the program sees that waiting will not help
                error["details"] = [
                    {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "QUOTA_EXHAUSTED", "metadata": more}
                ]
                if self.why == "parked":  # with a key of its own, only by the name of a daily quota
                    violation = {"quotaMetric": "agentos", "quotaId": "KeysParkedPerDay"}
                    failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}
                    error["details"].append(failure)
            return {"error": error}
        kind, code = _OPENAI.get(self.status, ("server_error", "server_error"))
        if self.why == "parked":  # the form of a subscription's limit, after which codex does not come again
            kind, code = "usage_limit_reached", "usage_limit_reached"
        return {"error": {"message": self.message, "type": kind, "param": None, "code": code, **more}}

    def _reset_fields(self) -> dict[str, Any]:
        if self.resets_at is None:
            return {}
        if self.status != 429:
            # For opencode, which repeats an error that has 429, 500 or the like anywhere in its text: no long numbers.
            return {"resets_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.resets_at))}
        more: dict[str, Any] = {"resets_at": round(self.resets_at)}
        if self.why == "parked" and self.retry_after is not None:
            more["resets_in_seconds"] = math.ceil(self.retry_after)
        return more


def build_stream_error(form: WireForm, status: int, body: bytes) -> bytes:
    """Return the event by which a stream that has begun is told of a failure; *body* is the error as JSON."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        text = body.decode("utf-8", "replace")[:2000] or f"the provider answered with status {status}"
        document = json.loads(GatewayRefusal(status, text).body(form))
    if form is WireForm.ANTHROPIC:
        return b"event: error\ndata: " + json.dumps(document).encode() + b"\n\n"
    if form is WireForm.RESPONSES:
        error = document.get("error")
        error = error if isinstance(error, dict) else {}
        code = error.get("code") or error.get("type") or "server_error"
        response = {
            "id": "resp_agentos",
            "object": "response",
            "status": "failed",
            "output": [],
            "error": {"code": str(code), "message": str(error.get("message") or f"status {status}")},
        }
        event = {"type": "response.failed", "sequence_number": 0, "response": response}
        return b"event: response.failed\ndata: " + json.dumps(event).encode() + b"\n\n"
    return b"data: " + json.dumps(document).encode() + b"\n\n"
