"""goose: ``goose``."""

from __future__ import annotations

from typing import Final

from ..program import Program

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
)
