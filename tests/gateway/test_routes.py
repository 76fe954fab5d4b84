"""The gateway serves the addresses of the providers, and no others."""

from __future__ import annotations

import pytest

from agentos.gateway.routes import Operation, Route, RouteRefused, WireForm, find_route

A, C, R, G = WireForm.ANTHROPIC, WireForm.CHAT, WireForm.RESPONSES, WireForm.GEMINI
GENERATE, COUNT, EMBED, MODELS = Operation.GENERATE, Operation.COUNT, Operation.EMBED, Operation.MODELS
GEMINI = "/v1beta/models/gemini-2.5-pro"


@pytest.mark.parametrize(
    ("method", "path", "headers", "route"),
    [
        ("POST", "/v1/messages", {}, Route("anthropic", A, GENERATE, "/v1/messages")),
        ("POST", "/v1/messages/count_tokens", {}, Route("anthropic", A, COUNT, "/v1/messages/count_tokens")),
        ("GET", "/v1/models", {"anthropic-version": "2023-06-01"}, Route("anthropic", A, MODELS, "/v1/models")),
        ("GET", "/v1/models", {}, Route("openai", C, MODELS, "/v1/models")),
        ("GET", "/v1/models/gpt-4o", {}, Route("openai", C, MODELS, "/v1/models/gpt-4o")),
        ("POST", "/v1/responses", {}, Route("openai", R, GENERATE, "/v1/responses")),
        ("POST", "/v1/responses/compact", {}, Route("openai", R, GENERATE, "/v1/responses/compact")),
        ("POST", "/v1/chat/completions", {}, Route("openai", C, GENERATE, "/v1/chat/completions")),
        ("POST", "/v1/chat/completions", {"upgrade": "h2c"}, Route("openai", C, GENERATE, "/v1/chat/completions")),
        ("POST", "/v1/embeddings", {}, Route("openai", C, EMBED, "/v1/embeddings")),
        ("POST", f"{GEMINI}:generateContent", {}, Route("gemini", G, GENERATE, f"{GEMINI}:generateContent")),
        (
            "POST",
            f"{GEMINI}:streamGenerateContent",
            {},
            Route("gemini", G, GENERATE, f"{GEMINI}:streamGenerateContent"),
        ),
        ("POST", f"{GEMINI}:countTokens", {}, Route("gemini", G, COUNT, f"{GEMINI}:countTokens")),
        ("POST", "/v1/models/g:countTokens", {}, Route("gemini", G, COUNT, "/v1/models/g:countTokens")),
        ("GET", "/v1/models", {"x-goog-api-key": "x"}, Route("gemini", G, MODELS, "/v1/models")),
        ("GET", "/v1beta/models", {}, Route("gemini", G, MODELS, "/v1beta/models")),
        ("POST", "/openai/v1/responses", {}, Route("openai", R, GENERATE, "/v1/responses")),
        ("POST", "/azure/v1/responses", {}, Route("openai", R, GENERATE, "/v1/responses")),
        ("POST", "/anthropic/v1/messages", {}, Route("anthropic", A, GENERATE, "/v1/messages")),
        ("GET", "/anthropic/v1/models", {}, Route("anthropic", A, MODELS, "/v1/models")),
        ("POST", "/groq/openai/v1/chat/completions", {}, Route("groq", C, GENERATE, "/openai/v1/chat/completions")),
        ("POST", "/groq/v1/chat/completions", {}, Route("groq", C, GENERATE, "/openai/v1/chat/completions")),
        ("POST", "/mistral/v1/chat/completions", {}, Route("mistral", C, GENERATE, "/v1/chat/completions")),
        ("GET", "/openrouter/v1/models/a/b", {}, Route("openrouter", C, MODELS, "/api/v1/models/a/b")),
    ],
)
def test_an_address_of_a_provider_is_served(method: str, path: str, headers: dict[str, str], route: Route) -> None:
    assert find_route(method, path, headers) == route
    assert route.origin.startswith("https://")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/v1/messages"),
        ("POST", "/v1/files"),
        ("POST", "/v1/messages/batches"),
        ("DELETE", "/v1/models/gpt-4o"),
        ("POST", "/v1/messages/"),
        ("POST", "//v1/messages"),
        ("POST", "/v1//messages"),
        ("POST", "/v1/../v1/messages"),
        ("POST", "/v1/./messages"),
        ("POST", "/v1/%2e%2e/messages"),
        ("POST", "/v1%2fmessages"),
        ("POST", "/v1/messages\\x"),
        ("POST", "/evil/v1/messages"),
        ("POST", "/bedrock/v1/chat/completions"),
        ("POST", "/anthropic/v1/chat/completions"),
        ("POST", "/v1beta/models/x:deleteEverything"),
        ("POST", "/v1beta/files:upload"),
        ("POST", "/v1beta/models/../../x:generateContent"),
        ("GET", "/v1/models/../files"),
        ("POST", "v1/messages"),
        ("OPTIONS", "*"),
        ("POST", "/openai/openai/v1/responses"),
    ],
)
def test_any_other_address_is_refused(method: str, path: str) -> None:
    with pytest.raises(RouteRefused) as refused:
        find_route(method, path, {})
    assert refused.value.status == 404


def test_a_websocket_is_told_to_use_http() -> None:
    with pytest.raises(RouteRefused) as refused:
        find_route("GET", "/v1/responses", {"upgrade": "WebSocket"})
    assert refused.value.status == 426
