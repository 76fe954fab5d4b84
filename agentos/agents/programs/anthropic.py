"""Programs that use Anthropic's SDK, or read the same variables. They have no name of their own to be recognised by."""

from __future__ import annotations

from typing import Final

from ..program import Program

ANTHROPIC: Final = Program(
    name="anthropic",
    executables=(),
    provider="anthropic",
    variables={"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "{token}"},
    unset=("ANTHROPIC_AUTH_TOKEN",),
    traps=("the SDK waits 10 minutes for an answer unless the program sets timeout=",),
)
