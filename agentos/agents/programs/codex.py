"""Codex CLI: ``codex``. It has no variable for the address: a provider of its own is configured by flags."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...costs.usage import Usage
from ...runs.agents.agent_protocol import AgentReport, Ending
from ..program import Program
from ..reading import (
    EventReader,
    count,
    get_amount,
    get_instant,
    get_object,
    get_text,
    get_whole,
    parse_object,
    show_text,
    show_tool,
)

VARIABLE: Final = "AGENTOS_CREDENTIAL"
_PROVIDER: Final = (
    'model_providers.agentos={name="agentos",base_url="{url}/v1",env_key="'
    + VARIABLE
    + '",wire_api="responses",stream_idle_timeout_ms=86400000}'
)

# ``codex_error_info`` of a turn that failed, as its session file has it.
_ERRORS: Final = {
    "server_overloaded": Ending.OVERLOADED,
    "internal_server_error": Ending.OVERLOADED,
    "context_window_exceeded": Ending.CONTEXT,
    "unauthorized": Ending.REJECTED,
    "session_budget_exceeded": Ending.STOPPED,
    "cyber_policy": Ending.REFUSED,
}
_FULL: Final = 100.0
_MOST: Final = 1 << 26  # bytes of a session file that are read, at its end


class CodexReader(EventReader):
    """Reads ``exec --json``, which gives errors as messages only, and their structure from the session's file."""

    def __init__(self, environ: Mapping[str, str], resumed: str | None = None) -> None:
        super().__init__(environ, resumed)
        self.usage_is_total = True
        # How long the session's files are before this process: what they say of earlier turns is not its ending.
        self._earlier = {} if resumed is None else {path: _measure(path) for path in _find_files(environ, resumed)}
        self._windows: dict[str, Any] | None = None  # the limits of a subscription, if the turn was told of them

    def on_event(self, event: dict[str, Any]) -> Sequence[str]:
        kind = event.get("type")
        if kind == "thread.started":
            self.session = self.session or get_text(event, "thread_id")
        elif kind == "turn.started":
            self.turns = (self.turns or 0) + 1
        elif kind == "turn.completed":
            self.ending = Ending.DONE
            self.usage = _read_usage(get_object(event, "usage"))
        elif kind == "turn.failed":
            self.ending = Ending.FAILED
            self.reason = get_text(get_object(event, "error"), "message") or ""
        elif kind == "error":
            return show_text(event.get("message"))
        elif kind in ("item.started", "item.completed"):
            return self._on_item(get_object(event, "item"), is_new=kind == "item.started")
        return []

    def _on_item(self, item: dict[str, Any], *, is_new: bool) -> list[str]:
        kind = item.get("type")
        if kind == "agent_message" and not is_new:
            self.answer = get_text(item, "text") or self.answer
            return show_text(item.get("text"))
        if kind == "command_execution":
            return show_tool("shell", item.get("command")) if is_new else []
        if kind in ("mcp_tool_call", "web_search", "file_change") and is_new:
            return show_tool(item.get("tool") or kind, item.get("arguments") or item.get("query") or "")
        return []

    def finish(self, code: int | None) -> AgentReport:
        if self.session is not None and self.ending is not Ending.DONE:
            for path in _find_files(self.environ, self.session)[-1:]:
                for event in _read_events(path, self._earlier.get(path, 0)):
                    self._on_recorded(event)
        return super().finish(code)

    def _on_recorded(self, event: dict[str, Any]) -> None:
        """Read an event of the session's file; those of earlier turns are replaced by later ones."""
        payload = get_object(event, "payload")
        kind = payload.get("type")
        if event.get("type") != "event_msg":
            return
        if kind in ("task_started", "turn_started"):
            self.until = None
            self._windows = None
        elif kind == "token_count":
            self._windows = get_object(payload, "rate_limits")
        elif kind in ("task_complete", "turn_complete") and isinstance(payload.get("error"), dict):
            self._on_error(payload["error"])

    def _on_error(self, error: dict[str, Any]) -> None:
        info = error.get("codex_error_info")
        self.reason = get_text(error, "message") or self.reason
        if isinstance(info, dict):
            self.ending = Ending.FAILED
            for facts in info.values():
                self.set_status(get_whole(facts, "http_status_code") if isinstance(facts, dict) else None)
        elif info == "usage_limit_exceeded":
            self.until = _find_reset(self._windows or {})
            # Without the windows that a usage limit has, it is what a key without money is told.
            self.ending = Ending.PARKED if self.until or self._windows is not None else Ending.SPENT
        else:
            self.ending = _ERRORS.get(str(info), Ending.FAILED)


def _find_reset(limits: Mapping[str, Any]) -> float | None:
    """Return the latest reset of the windows that are used up."""
    windows = [get_object(limits, name) for name in ("primary", "secondary")]
    full = [window for window in windows if (get_amount(window, "used_percent") or 0.0) >= _FULL]
    resets = [get_instant(window, "resets_at", now=time.time()) for window in full]
    return max((reset for reset in resets if reset is not None), default=None)


def _read_usage(used: Mapping[str, Any]) -> Usage:
    cached, written = count(used, "cached_input_tokens"), count(used, "cache_write_input_tokens")
    return Usage(
        input=max(0, count(used, "input_tokens") - cached - written),
        output=count(used, "output_tokens"),
        cache_read=cached,
        cache_write=written,
        reasoning=count(used, "reasoning_output_tokens"),
    )


def _find_files(environ: Mapping[str, str], session: str) -> list[Path]:
    """Return the files of that session, the newest last."""
    home = Path(environ.get("CODEX_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".codex")
    try:
        return sorted(home.glob(f"sessions/*/*/*/rollout-*-{_plain(session)}.jsonl"))
    except OSError:
        return []


def _measure(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_events(path: Path, begin: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a session's file from there on; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(begin, _measure(path) - _MOST))
            for line in file:
                event = parse_object(line.decode("utf-8", "replace"))
                if event is not None:
                    yield event
    except OSError:
        return


def _plain(session: str) -> str:
    """Return the id without what a pattern of file names would understand."""
    return "".join(char for char in session if char.isalnum() or char == "-")


CODEX: Final = Program(
    name="codex",
    executables=("codex",),
    provider="openai",
    variables={VARIABLE: "{token}"},
    flags=("-c", "model_provider=agentos", "-c", _PROVIDER),
    traps=("a profile that sets model_provider is overridden by the flags; a base URL of its config file is not used",),
    user_agents=("codex_",),
    session_headers=("session-id", "thread-id"),
    start=("exec", "--json", "--skip-git-repo-check", "{options}", "-"),
    resume=("exec", "--json", "--skip-git-repo-check", "{options}", "resume", "{session}", "-"),
    key_variables={"openai": "CODEX_API_KEY"},
    reader=CodexReader,
    own_words={"exec": 0, "e": 0, "--json": 0, "--skip-git-repo-check": 0},
    headless=("exec", "e"),
)
