"""Claude Code: ``claude``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...costs.usage import NO_USAGE, Usage
from ...runs.agents.agent_protocol import Ending
from ..program import Program
from ..reading import (
    EventReader,
    count,
    get_amount,
    get_instant,
    get_list,
    get_object,
    get_text,
    get_whole,
    show_text,
    show_tool,
)

# Of an assistant's event that is an error of the API, and of its retries.
_ERRORS: Final = {
    "rate_limit": Ending.LIMITED,
    "overloaded": Ending.OVERLOADED,
    "server_error": Ending.OVERLOADED,
    "authentication_failed": Ending.REJECTED,
    "oauth_org_not_allowed": Ending.REJECTED,
    "billing_error": Ending.SPENT,
}
_REASONS: Final = {
    "prompt_too_long": Ending.CONTEXT,
    "max_turns": Ending.STOPPED,
    "budget_exhausted": Ending.STOPPED,
    "blocking_limit": Ending.LIMITED,
}
_SUBTYPES: Final = {"error_max_turns": Ending.STOPPED, "error_max_budget_usd": Ending.STOPPED}


class ClaudeReader(EventReader):
    """Reads ``--output-format stream-json --verbose``. Every event names its session; one of another is ignored."""

    def __init__(self, environ: Mapping[str, str], resumed: str | None = None) -> None:
        super().__init__(environ, resumed)
        self.usage_is_total = True
        self._error: Ending | None = None
        self._resets_at: float | None = None

    def on_event(self, event: dict[str, Any]) -> Sequence[str]:
        session = get_text(event, "session_id")
        if event.get("type") == "system" and event.get("subtype") == "init":
            self.session = self.session or session
            return []
        if event.get("type") == "result" and self.session is None:
            self._on_result(event)  # it could not begin
            return []
        if session is None or session != self.session:
            return []
        kind = event.get("type")
        if kind == "assistant":
            return self._on_assistant(event)
        if kind == "rate_limit_event":
            info = get_object(event, "rate_limit_info")
            rejected = info.get("status") == "rejected"
            self._resets_at = get_instant(info, "resetsAt", now=time.time()) if rejected else None
        elif kind == "system" and event.get("subtype") == "api_retry":
            wait = (get_amount(event, "retry_delay_ms") or 0.0) / 1000
            return [f"retry {event.get('attempt')} of {event.get('max_retries')} in {wait:.0f} s: {event.get('error')}"]
        elif kind == "result":
            self._on_result(event)
        return []

    def _on_assistant(self, event: dict[str, Any]) -> list[str]:
        if event.get("parent_tool_use_id") is not None:
            return []  # a subagent's
        error = get_text(event, "error")
        self._error = None if error is None else _ERRORS.get(error, Ending.FAILED)
        shown: list[str] = []
        for block in get_list(get_object(event, "message"), "content"):
            if isinstance(block, dict) and block.get("type") == "text":
                shown += show_text(block.get("text"))
            elif isinstance(block, dict) and block.get("type") == "tool_use":
                shown += show_tool(block.get("name"), block.get("input"))
        return shown

    def _on_result(self, event: dict[str, Any]) -> None:
        self.turns = get_whole(event, "num_turns")
        self.cost = get_amount(event, "total_cost_usd")
        self.usage = _read_usage(event)
        self.answer = self.reason = get_text(event, "result") or ""
        self.ending = Ending.DONE
        reason, subtype = event.get("terminal_reason"), event.get("subtype")
        if event.get("is_error") is not True and subtype == "success":
            if event.get("stop_reason") == "refusal":
                self.ending = Ending.REFUSED
            return
        self.ending = self._error or Ending.FAILED
        if self.ending is Ending.FAILED:
            self.set_status(get_whole(event, "api_error_status"))
        for table, word in ((_REASONS, reason), (_SUBTYPES, subtype)):
            if isinstance(word, str) and word in table:
                self.ending = table[word]
        if event.get("stop_reason") == "refusal":
            self.ending = Ending.REFUSED
        errors = [text for text in get_list(event, "errors") if isinstance(text, str)]
        self.reason = self.reason or (errors[0] if errors else str(subtype))
        if self.ending is Ending.LIMITED and self._resets_at is not None:
            self.ending, self.until = Ending.PARKED, self._resets_at


def _read_usage(event: dict[str, Any]) -> Usage:
    """Return the tokens of all models: ``usage`` alone leaves out those of subagents."""
    total = NO_USAGE
    for used in get_object(event, "modelUsage").values():
        if isinstance(used, dict):
            total += Usage(
                input=count(used, "inputTokens"),
                output=count(used, "outputTokens"),
                cache_read=count(used, "cacheReadInputTokens"),
                cache_write=count(used, "cacheCreationInputTokens"),
                reasoning=count(used, "thinkingTokens"),
            )
    return total


CLAUDE: Final = Program(
    name="claude",
    executables=("claude",),
    provider="anthropic",
    variables={
        "ANTHROPIC_BASE_URL": "{url}",
        "ANTHROPIC_API_KEY": "{token}",
        # Telemetry and updates go elsewhere, and are no use to an agent without a person.
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # A failed stream would be asked for again without streaming, and billed twice.
        "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
        # Behind another address it leaves its tool search off unless told.
        "ENABLE_TOOL_SEARCH": "true",
    },
    patience={
        "API_TIMEOUT_MS": "2147483647",  # the largest that it takes: a larger one fails at once
        "API_FORCE_IDLE_TIMEOUT": "0",
        "CLAUDE_ENABLE_STREAM_WATCHDOG": "0",
        "CLAUDE_ENABLE_BYTE_WATCHDOG": "0",
    },
    # Each would win over the key, or send the requests to another service.
    unset=(
        *("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
        "CLAUDE_CODE_USE_FOUNDRY",
    ),
    traps=("an env block in a settings file of claude wins over these variables",),
    user_agents=("claude-cli/",),
    session_headers=("x-claude-code-session-id",),
    start=("-p", "--output-format", "stream-json", "--verbose", "--session-id", "{session}", "{options}"),
    resume=("-p", "--output-format", "stream-json", "--verbose", "--resume", "{session}", "{options}"),
    picks_session=True,
    key_variables={"anthropic": "ANTHROPIC_API_KEY"},
    reader=ClaudeReader,
    own_words={"-p": 0, "--print": 0, "--output-format": 1, "--input-format": 1, "--verbose": 0, "--session-id": 1},
    prompt_words=("--print",),
    headless=("-p", "--print"),
)
