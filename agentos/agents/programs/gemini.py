"""Gemini CLI: ``gemini``."""

from __future__ import annotations

from typing import Final

from ..program import Program, SettingsFolder

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
)
