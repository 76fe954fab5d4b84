"""Programs that use OpenAI's SDK, or read the same variables. They have no name of their own to be recognised by."""

from __future__ import annotations

from typing import Final

from ..program import Program

OPENAI: Final = Program(
    name="openai",
    executables=(),
    provider="openai",
    variables={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{token}"},
    unset=("OPENAI_ORG_ID", "OPENAI_PROJECT_ID"),
    traps=("the SDK waits 10 minutes for an answer unless the program sets timeout=",),
)
