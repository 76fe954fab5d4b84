"""Claude Code: ``claude``."""

from __future__ import annotations

from typing import Final

from ..program import Program

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
)
