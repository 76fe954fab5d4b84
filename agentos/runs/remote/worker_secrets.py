"""Resolve the secret of a credential by its name, on the worker's machine."""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from ...pool.secret_sources import SecretUnavailable, derive_name, displayable_name, from_file
from .assignment import Assignment, compute_proof

KEYS = "AGENTOS_KEYS"  # names a file of keys

_WITH_THE_ITEMS = "send the secrets with the items: ship_secrets=True (--ship-secrets)"
_THROUGH_A_CLIENT = (
    "give engine=<the Client> in place of its executor, and ship_secrets=True: it has its own encrypted connection, "
    "which sends secrets with the items"
)


def resolve_secret(assignment: Assignment, environ: Mapping[str, str]) -> str | None:
    """Return the secret for the assignment's worker; None if it has no credential.

    It is in the assignment, or in the environment variable that the credential is named after (``OPENAI_API_KEY_1`` for
    ``openai-api-key-1``), or in the file that AGENTOS_KEYS names. Raises ``SecretUnavailable`` if it is in none of
    them, or differs from the driver's, whose limits the pool tracks.
    """
    name = assignment.credential
    if name is None:
        return None
    if assignment.secret is not None:
        return assignment.secret.reveal()
    other: str | None = None
    for where, secret in _find_secrets(name, environ):
        if hmac.compare_digest(compute_proof(secret, assignment.nonce), assignment.proof):
            return secret
        other = where
    if other is not None:
        problem = f"is another key on {socket.gethostname()} ({other}) than where the run was started"
        advice = "set the same key there"
    else:
        problem = f"was not found on {socket.gethostname()}: not in an environment variable"
        problem += f" and not in the file that {KEYS} names" if environ.get(KEYS) else f", and {KEYS} names no file"
        advice = f"{_build_export_hint(name)}, or name a file of keys in {KEYS} there"
    raise SecretUnavailable(
        source=f"the credential {name}",
        problem=problem,
        advice=f"{advice}; or {_THROUGH_A_CLIENT if assignment.scheduled else _WITH_THE_ITEMS}",
    )


def _find_secrets(name: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each place with a secret of that name, and the secret."""
    for variable, value in environ.items():
        if derive_name(variable) == name and value.strip():
            yield displayable_name(variable), value.strip()
    path = environ.get(KEYS)
    if path:
        found = _file(Path(path), _changed_at(path)).get(name)
        if found is not None:
            yield f"the file that {KEYS} names", found


@lru_cache(maxsize=4)
def _file(path: Path, _changed: int) -> Mapping[str, str]:
    return from_file(path)


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0  # reading it will report the problem


def _build_export_hint(name: str) -> str:
    variable = name.replace("-", "_").upper()
    return (
        f"export {variable} there" if variable.isidentifier() and derive_name(variable) == name else "export it there"
    )
