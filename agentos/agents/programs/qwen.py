"""Qwen Code: ``qwen``."""

from __future__ import annotations

from typing import Final

from ..program import Program

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
)
