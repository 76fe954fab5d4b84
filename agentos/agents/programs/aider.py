"""Aider: ``aider``, which calls providers through LiteLLM."""

from __future__ import annotations

from typing import Final

from ..program import Program
from ..reading import PlainReader

AIDER: Final = Program(
    name="aider",
    executables=("aider",),
    provider="openai",
    variables={
        "OPENAI_API_BASE": "{url}/v1",
        "OPENAI_API_KEY": "{token}",
        "ANTHROPIC_BASE_URL": "{url}",
        "ANTHROPIC_API_BASE": "{url}",
        "ANTHROPIC_API_KEY": "{token}",
        "AIDER_CHECK_UPDATE": "false",
        "AIDER_ANALYTICS": "false",
    },
    patience={"AIDER_TIMEOUT": "86400"},
    traps=("aider --message ends with code 0 even if every call failed",),
    start=("--message-file", "/dev/stdin", "--no-stream", "{options}"),
    key_variables={"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"},
    reader=PlainReader,
    own_words={"--message": 0, "-m": 0, "--message-file": 1},
    prompt_words=("--message",),
    headless=("--message", "-m"),
)
