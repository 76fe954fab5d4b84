"""Codex CLI: ``codex``. It has no variable for the address: a provider of its own is configured by flags."""

from __future__ import annotations

from typing import Final

from ..program import Program

VARIABLE: Final = "AGENTOS_CREDENTIAL"
_PROVIDER: Final = (
    'model_providers.agentos={name="agentos",base_url="{url}/v1",env_key="'
    + VARIABLE
    + '",wire_api="responses",stream_idle_timeout_ms=86400000}'
)

CODEX: Final = Program(
    name="codex",
    executables=("codex",),
    provider="openai",
    variables={VARIABLE: "{token}"},
    flags=("-c", "model_provider=agentos", "-c", _PROVIDER),
    traps=("a profile that sets model_provider is overridden by the flags; a base URL of its config file is not used",),
    user_agents=("codex_",),
    session_headers=("session-id", "thread-id"),
)
