"""opencode: ``opencode``. Its configuration is one JSON object, which it also reads from a variable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from ...costs.usage import NO_USAGE, Usage
from ...runs.agents.agent_protocol import Ending
from ..program import Program
from ..reading import EventReader, count, get_amount, get_object, get_text, get_whole, show_text, show_tool


def _provider(path: str) -> dict[str, object]:
    # Without a limit to the whole request or to its headers: the gateway holds requests until a key is free.
    return {"options": {"baseURL": "{url}" + path, "apiKey": "{token}", "timeout": False, "headerTimeout": False}}


_CONFIG: Final = json.dumps(
    {
        "provider": {"openai": _provider("/v1"), "anthropic": _provider("/v1"), "google": _provider("/v1beta")},
        "autoupdate": False,
        "share": "disabled",
    }
)

_ERRORS: Final = {
    "ContextOverflowError": Ending.CONTEXT,
    "ProviderAuthError": Ending.REJECTED,
    "ContentFilterError": Ending.REFUSED,
}


class OpencodeReader(EventReader):
    """Reads ``run --format json``. Its errors have the provider's whole answer."""

    def on_event(self, event: dict[str, Any]) -> Sequence[str]:
        kind, session, part = event.get("type"), get_text(event, "sessionID"), get_object(event, "part")
        self.session = self.session or session
        if session is None or session != self.session:
            return []  # a subagent's
        if kind == "text":
            self.answer = get_text(part, "text") or self.answer
            return show_text(part.get("text"))
        if kind == "tool_use":
            return show_tool(part.get("tool"), get_object(part, "state").get("input"))
        if kind == "step_finish":
            self._on_step(part)
        elif kind == "error":
            self._on_error(get_object(event, "error"))
            return show_text(self.reason)
        return []

    def _on_step(self, part: dict[str, Any]) -> None:
        tokens = get_object(part, "tokens")
        cache = get_object(tokens, "cache")
        self.turns = (self.turns or 0) + 1
        self.cost = (self.cost or 0.0) + (get_amount(part, "cost") or 0.0)
        self.usage = (self.usage or NO_USAGE) + Usage(
            input=count(tokens, "input"),
            output=count(tokens, "output") + count(tokens, "reasoning"),
            cache_read=count(cache, "read"),
            cache_write=count(cache, "write"),
            reasoning=count(tokens, "reasoning"),
        )
        if part.get("reason") == "content-filter":
            self.ending = Ending.REFUSED
        elif part.get("reason") != "tool-calls":
            self.ending = Ending.DONE

    def _on_error(self, error: dict[str, Any]) -> None:
        data = get_object(error, "data")
        self.reason = get_text(data, "message") or get_text(error, "name") or ""
        name, status = error.get("name"), get_whole(data, "statusCode")
        self.ending = _ERRORS.get(str(name), Ending.FAILED)
        if name == "APIError" and status is not None:
            self.set_status(status)
            self.set_answer_error(status, get_object(data, "responseHeaders"), data.get("responseBody"))
        elif name == "APIError" and data.get("isRetryable") is True:
            self.ending = Ending.OVERLOADED  # no answer came


OPENCODE: Final = Program(
    name="opencode",
    executables=("opencode",),
    provider="openai",
    variables={"OPENCODE_CONFIG_CONTENT": _CONFIG, "OPENCODE_DISABLE_AUTOUPDATE": "1"},
    traps=("a model must be named, as openai/MODEL, anthropic/MODEL or google/MODEL: -m, or model of its settings",),
    user_agents=("opencode/",),
    repeats_429=True,
    session_headers=("x-session-id", "session-id"),
    start=("run", "--format", "json", "{options}"),
    resume=("run", "--format", "json", "-s", "{session}", "{options}"),
    key_variables={
        "openai": "OPENAI_API_KEY",
        "anthropic": "ANTHROPIC_API_KEY",
        "gemini": "GOOGLE_GENERATIVE_AI_API_KEY",
    },
    key_reference="{env:NAME}",
    reader=OpencodeReader,
    own_words={"run": 0, "--format": 1},
    headless=("run",),
)
