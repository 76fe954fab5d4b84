"""opencode: ``opencode``. Its configuration is one JSON object, which it also reads from a variable."""

from __future__ import annotations

import json
from typing import Final

from ..program import Program


def _provider(path: str) -> dict[str, object]:
    # Without a limit to the whole request or to its headers: the gateway holds requests until a key is free.
    return {"options": {"baseURL": "{url}" + path, "apiKey": "{token}", "timeout": False, "headerTimeout": False}}


_CONFIG: Final = json.dumps(
    {
        "provider": {"openai": _provider("/v1"), "anthropic": _provider("/v1"), "google": _provider("/v1beta")},
        "autoupdate": False,
        "share": "disabled",
    }
)

OPENCODE: Final = Program(
    name="opencode",
    executables=("opencode",),
    provider="openai",
    variables={"OPENCODE_CONFIG_CONTENT": _CONFIG, "OPENCODE_DISABLE_AUTOUPDATE": "1"},
    traps=("a model must be named, as openai/MODEL, anthropic/MODEL or google/MODEL: -m, or model of its settings",),
    user_agents=("opencode/",),
    session_headers=("x-session-id", "session-id"),
)
