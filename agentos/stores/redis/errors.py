"""Translate errors of the server and the connection into transient errors and errors that need a person."""

from __future__ import annotations

import re
from typing import Final

from redis import exceptions

from ...errors import NotAStore, StoreDamaged, StoreError, StoreUnavailable
from ...pool.store_protocol import TransientStoreError
from .tls_errors import explain_tls_error, is_encrypted, suggest_url_fixes

# Transient errors: how such a reply begins, or a word in it if a script failed while running.
_TRANSIENT: Final = {
    "LOADING": "it is still loading its data",
    "BUSY": "it is busy with a script",
    "READONLY": "it is a replica, which cannot be written",
    "MASTERDOWN": "it has lost its master",
    "OOM": "its memory is full",
    "MISCONF": "it cannot write to its disk",
    "CLUSTERDOWN": "its cluster is down",
    "NOREPLICAS": "it has too few replicas",
    "TRYAGAIN": "its cluster is moving keys",
}
_CLASSES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
)
_REFUSED: Final = (
    exceptions.AuthenticationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
    exceptions.NoPermissionError,
)
_LONGEST: Final = 200

FAILURES: Final = (exceptions.RedisError, OSError)


def translate_error(error: Exception, shown: str, limit: float) -> TransientStoreError | StoreError:
    """Return what to raise instead. *shown* is the server's URL for people, *limit* the timeout."""
    if isinstance(error, (exceptions.TimeoutError, TimeoutError)):
        return TransientStoreError(f"no answer from {shown} within {limit:g} s")
    if isinstance(error, _REFUSED):
        return _refused(shown, _error_text(error))
    for kind, word in _CLASSES:
        if isinstance(error, kind):
            return TransientStoreError(f"{shown} cannot be used now: {_TRANSIENT[word]}")
    if isinstance(error, exceptions.ResponseError):
        return _translate_reply(error, shown)
    if type(error) is exceptions.RedisError:  # without a subclass: redis-py rejects an option
        return build_option_error(error, shown)
    refused = explain_tls_error(error) if is_encrypted(shown) else None
    if refused is not None:
        return StoreUnavailable(path=shown, detail=refused)
    return TransientStoreError(f"{shown} cannot be reached ({_error_text(error)})")


def build_option_error(error: Exception, shown: str) -> StoreUnavailable:
    """Return what to raise for redis-py's *error* about an option of the URL, whose text may contain a value."""
    detail = f"redis-py does not know an option of its URL, or rejects its value ({type(error).__name__})"
    return StoreUnavailable(path=shown, detail=detail)


def build_opening_error(error: TransientStoreError, shown: str) -> StoreUnavailable:
    """Return what to raise for a transient error before the first success, which a person should see."""
    return StoreUnavailable(path=shown, detail="; ".join([str(error), *suggest_url_fixes(str(error), shown)]))


def _refused(shown: str, text: str) -> StoreUnavailable:
    is_known = re.search(r"NOPERM|permission|ACL failure|can't", text)  # the user is known, and lacks a permission
    detail = f"the server refuses this user ({text})"
    return StoreUnavailable(path=shown, detail=detail, wants_login=not is_known)


def _translate_reply(error: exceptions.ResponseError, shown: str) -> TransientStoreError | StoreError:
    text = _error_text(error)
    if isinstance(error, exceptions.MovedError) or re.match(r"MOVED |ASK ", text):
        return StoreUnavailable(
            path=shown, detail="its keys are on another node of a cluster: name that one in the URL"
        )
    if "WRONGTYPE" in text:
        return NotAStore(path=shown, detail="a key of that name has another type")
    if re.search(r"\b(NOAUTH|WRONGPASS|NOPERM)\b|no permissions|ACL failure|can't (run|access|publish)", text):
        return _refused(shown, text)
    for word, why in _TRANSIENT.items():
        if re.search(rf"(^|[-\s]){word}\b", text):
            return TransientStoreError(f"{shown} cannot be used now: {why}")
    if re.search(r"unknown command|invalid DB index|DB index is out of range", text, re.IGNORECASE):
        return StoreUnavailable(path=shown, detail=f"the server said: {text}")
    if "script" in text:
        return StoreDamaged(path=shown, detail=f"the server said: {text}")
    return TransientStoreError(f"{shown} cannot be used now: it said {text}")


def _error_text(error: Exception) -> str:
    """Return the error's own text, which names hosts and ports but no password; the user is removed."""
    words = re.sub(r"\bUser \S+ has\b", "this user has", " ".join(str(error).split()))
    return words[:_LONGEST] or type(error).__name__
