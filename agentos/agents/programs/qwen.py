"""Qwen Code: ``qwen``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...costs.usage import Usage
from ...runs.agents.agent_protocol import AgentReport, Ending
from ..program import Program
from ..reading import EventReader, count, get_list, get_object, get_text, get_whole, show_text, show_tool

_CODES: Final = {41: Ending.REJECTED, 53: Ending.STOPPED, 55: Ending.STOPPED}


class QwenReader(EventReader):
    """Reads ``--output-format stream-json``, which is much like claude's."""

    def __init__(self, environ: Mapping[str, str], resumed: str | None = None) -> None:
        super().__init__(environ, resumed)
        self.usage_is_total = True

    def on_event(self, event: dict[str, Any]) -> Sequence[str]:
        kind, session = event.get("type"), get_text(event, "session_id")
        if kind == "system" and event.get("subtype") == "init":
            self.session = self.session or session
        if session != self.session:
            return []
        if kind == "assistant" and event.get("parent_tool_use_id") is None:
            shown: list[str] = []
            for block in get_list(get_object(event, "message"), "content"):
                if isinstance(block, dict) and block.get("type") == "text":
                    shown += show_text(block.get("text"))
                elif isinstance(block, dict) and block.get("type") == "tool_use":
                    shown += show_tool(block.get("name"), block.get("input"))
            return shown
        if kind == "result":
            self._on_result(event)
        return []

    def _on_result(self, event: dict[str, Any]) -> None:
        used = get_object(event, "usage")
        cached = count(used, "cache_read_input_tokens")
        self.turns = get_whole(event, "num_turns")
        self.usage = Usage(
            input=max(0, count(used, "input_tokens") - cached), output=count(used, "output_tokens"), cache_read=cached
        )
        self.answer = get_text(event, "result")
        self.reason = get_text(get_object(event, "error"), "message") or self.answer or ""
        self.ending = Ending.DONE
        if event.get("subtype") == "error_max_turns":
            self.ending = Ending.STOPPED
        elif event.get("is_error") is True or event.get("subtype") != "success":
            self.ending = Ending.FAILED

    def finish(self, code: int | None) -> AgentReport:
        if self.ending is Ending.FAILED and code in _CODES:
            self.ending = _CODES[code]
        return super().finish(code)


QWEN: Final = Program(
    name="qwen",
    executables=("qwen",),
    provider="openai",
    variables={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{token}"},
    patience={
        "QWEN_CODE_UNATTENDED_RETRY": "1",
        "QWEN_STREAM_IDLE_TIMEOUT_MS": "0",
        "QWEN_STREAM_MAX_LIFETIME_MS": "0",
    },
    flags=("--auth-type", "openai"),
    traps=("a model must be named: -m, or OPENAI_MODEL",),
    user_agents=("QwenCode/",),
    leaves_after=120.0,
    start=("--output-format", "stream-json", "{options}"),
    resume=("--output-format", "stream-json", "--resume", "{session}", "{options}"),
    key_variables={"openai": "OPENAI_API_KEY"},
    reader=QwenReader,
    own_words={"-p": 0, "--prompt": 0, "-o": 1, "--output-format": 1},
    prompt_words=("--prompt",),
)
