"""The variables and arguments by which a program finds the gateway."""

from __future__ import annotations


def build_environment(program: str, url: str, token: str) -> dict[str, str]:
    """Return the variables for *program* and for what it starts: those that the SDKs of all providers read."""
    return {
        "AGENTOS_GATEWAY_URL": url,
        "AGENTOS_GATEWAY_TOKEN": token,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": token,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": token,
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_KEY": token,
    }


def build_arguments(argv: tuple[str, ...], _url: str, _token: str) -> tuple[str, ...]:
    """Return the command with the arguments that its program needs."""
    return argv
