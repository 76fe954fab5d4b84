"""Model families: reduce a model's name to its family and find the declared scopes that cover it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache

# A dated or moving snapshot of a family: gpt-4o-2024-08-06, claude-sonnet-4-20250514, gemini-pro-latest, x@001.
_SNAPSHOT = re.compile(r"(-20\d\d-?[01]\d-?[0-3]\d|-latest|@[\w.-]+)$")


@lru_cache(maxsize=1024)
def get_family(model: str) -> str:
    """Return *model* without the part that names one snapshot of it."""
    return _SNAPSHOT.sub("", model) or model


def find_scopes(model: str, declared: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes of a request for *model*: each declared one that covers it, then its family."""
    family = get_family(model)
    covering = [scope for scope in declared if scope != family and _covers(scope, model, family)]
    return (*covering, family)


def _covers(scope: str, model: str, family: str) -> bool:
    return scope == model or fnmatchcase(model, scope) or fnmatchcase(family, scope)
