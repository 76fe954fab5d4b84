"""goose: ``goose``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...costs.usage import Usage
from ...runs.agents.agent_protocol import Ending
from ..program import Program
from ..reading import EventReader, count, get_amount, get_list, get_object, get_text, show_text, show_tool


class GooseReader(EventReader):
    """Reads ``run --output-format stream-json``. It says that it ended, not how: after an error, too."""

    def __init__(self, environ: Mapping[str, str], resumed: str | None = None) -> None:
        super().__init__(environ, resumed)
        self.usage_is_total = True
        self._message: str | None = None

    def feed(self, line: str) -> Sequence[str]:
        if not line.startswith("{"):
            return []  # its banner
        return super().feed(line)

    def on_event(self, event: dict[str, Any]) -> Sequence[str]:
        kind = event.get("type")
        self.has_begun = True  # its events do not name the session
        if kind == "message":
            return self._on_message(get_object(event, "message"))
        if kind == "error" and get_text(event, "error") is not None:
            self.ending = Ending.FAILED
            self.reason = get_text(event, "error") or ""
            return show_text(self.reason)
        if kind == "complete":
            self.usage = Usage(
                input=count(event, "input_tokens"),
                output=count(event, "output_tokens"),
                cache_read=count(event, "cache_read_input_tokens"),
                cache_write=count(event, "cache_write_input_tokens"),
            )
            self.cost = get_amount(event, "cost_usd")
            if not self.usage:
                self.ending, self.reason = Ending.FAILED, "it got no answer from the provider"
        return []

    def _on_message(self, message: dict[str, Any]) -> list[str]:
        if message.get("role") != "assistant":
            return []
        shown: list[str] = []
        for block in get_list(message, "content"):
            if isinstance(block, dict) and block.get("type") == "text":
                same = message.get("id") is not None and message.get("id") == self._message
                self.answer = (self.answer or "" if same else "") + (get_text(block, "text") or "")
            elif isinstance(block, dict) and block.get("type") == "toolRequest":
                call = get_object(get_object(block, "toolCall"), "value")
                shown += show_tool(call.get("name"), call.get("arguments"))
        self._message = get_text(message, "id")
        return shown


GOOSE: Final = Program(
    name="goose",
    executables=("goose",),
    provider="openai",
    variables={
        "OPENAI_HOST": "{url}",
        "OPENAI_API_KEY": "{token}",
        "ANTHROPIC_HOST": "{url}",
        "ANTHROPIC_API_KEY": "{token}",
        "GOOGLE_HOST": "{url}",
        "GOOGLE_API_KEY": "{token}",
        "GOOSE_DISABLE_KEYRING": "1",
        "GOOSE_TELEMETRY_ENABLED": "false",
    },
    patience={"OPENAI_TIMEOUT": "86400", "ANTHROPIC_TIMEOUT": "86400"},
    traps=(
        "provider and model must be named: GOOSE_PROVIDER and GOOSE_MODEL, or goose configure",
        "goose run ends with code 0 after an error of the provider",
    ),
    session_headers=("agent-session-id",),
    start=("run", "--output-format", "stream-json", "{options}", "-n", "{session}", "-i", "-"),
    resume=("run", "--output-format", "stream-json", "{options}", "--resume", "-n", "{session}", "-i", "-"),
    picks_session=True,
    key_variables={"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GOOGLE_API_KEY"},
    reader=GooseReader,
    own_words={"run": 0, "--output-format": 1, "-t": 0, "--text": 0, "-n": 1, "--name": 1},
    prompt_words=("--text",),
    headless=("run",),
)
