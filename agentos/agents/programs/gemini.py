"""Gemini CLI: ``gemini``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...costs.usage import Usage
from ...runs.agents.agent_protocol import AgentReport, Ending
from ..program import Program, SettingsFolder
from ..reading import EventReader, count, get_object, get_text, parse_object, show_text, show_tool

# Its own exit codes. Others are the HTTP status of the last call, modulo 256.
_CODES: Final = {41: Ending.REJECTED, 53: Ending.STOPPED}
_STATUSES: Final = {status % 256: status for status in (400, 401, 402, 403, 404, 429, 500, 502, 503, 504, 529)}
# Where the answer of the provider is quoted as it came, it is read as JSON.
_QUOTED: Final = re.compile(r"\[API Error: (\{.*\})\]", re.DOTALL)


class GeminiReader(EventReader):
    """Reads ``--output-format stream-json``; the status of a failed call is in the exit code."""

    def __init__(self, environ: Mapping[str, str], resumed: str | None = None) -> None:
        super().__init__(environ, resumed)
        self._answered = False  # the last text is the answer so far

    def on_event(self, event: dict[str, Any]) -> Sequence[str]:
        kind = event.get("type")
        if kind == "init":
            self.session = self.session or get_text(event, "session_id")
        elif kind == "message" and event.get("role") == "assistant":
            return self._on_message(event)
        elif kind == "tool_use":
            self._answered = False
            return show_tool(event.get("tool_name"), event.get("parameters"))
        elif kind == "error":
            return show_text(event.get("message"))
        elif kind == "result":
            return self._on_result(event)
        return []

    def _on_message(self, event: dict[str, Any]) -> list[str]:
        text = get_text(event, "content") or ""
        if event.get("delta") is True and self._answered:
            self.answer = (self.answer or "") + text
        else:
            self.answer = text
        self._answered = True
        return []

    def _on_result(self, event: dict[str, Any]) -> list[str]:
        stats = get_object(event, "stats")
        self.usage = Usage(
            input=max(0, count(stats, "input_tokens") - count(stats, "cached")),
            output=count(stats, "output_tokens"),
            cache_read=count(stats, "cached"),
        )
        if event.get("status") == "success":
            self.ending = Ending.DONE
            return show_text(self.answer)
        self.ending = Ending.FAILED
        self.reason = get_text(get_object(event, "error"), "message") or ""
        return show_text(self.reason)

    def finish(self, code: int | None) -> AgentReport:
        if self.ending is Ending.FAILED and code is not None:
            status = _STATUSES.get(code)
            if code in _CODES:
                self.ending = _CODES[code]
            elif status is not None:
                self.set_status(status)
                quoted = _QUOTED.match(self.reason)
                body = None if quoted is None else parse_object(quoted[1])
                if body is not None:
                    self.set_answer_error(status, None, body, "gemini")
        return super().finish(code)


GEMINI: Final = Program(
    name="gemini",
    executables=("gemini",),
    provider="gemini",
    variables={
        "GOOGLE_GEMINI_BASE_URL": "{url}",
        "GEMINI_API_KEY": "{token}",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",  # else it asks, and ends with code 55 if nobody is there
    },
    # With another address it chooses an auth type that it then refuses, unless its settings name one. It also reads
    # settings by GEMINI_CLI_SYSTEM_SETTINGS_PATH, but only if root owns the file and every folder above it.
    settings=SettingsFolder(
        variable="GEMINI_CLI_HOME",
        folder=".gemini",
        file="settings.json",
        values={"security": {"auth": {"selectedType": "gemini-api-key"}}},
        private=("oauth_creds.json", "google_accounts.json", "tmp", "history"),
    ),
    unset=("GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"),
    traps=("it leaves after 60 s without an answer's headers and asks again; no setting changes that",),
    user_agents=("GeminiCLI",),
    leaves_after=60.0,
    start=("--output-format", "stream-json", "--session-id", "{session}", "{options}"),
    resume=("--output-format", "stream-json", "--resume", "{session}", "{options}"),
    picks_session=True,
    key_variables={"gemini": "GEMINI_API_KEY"},
    reader=GeminiReader,
    own_words={"-p": 0, "--prompt": 0, "-o": 1, "--output-format": 1, "--session-id": 1},
    prompt_words=("--prompt",),
)
