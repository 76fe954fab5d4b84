"""GitHub: per user or installation and resource. Answers 403 as often as 429; secondary limits are in no header."""

from __future__ import annotations

from ..dialect import Dialect

GITHUB = Dialect(
    name="github",
    hosts=("api.github.com", "models.github.ai", "models.inference.ai.azure.com"),
    marks=("x-github-",),
    windows={"requests": 3600.0},
    resource_windows={"search": 60.0, "code_search": 60.0},
    limits_with_403=True,
    hidden_limit_delay=60.0,
)
