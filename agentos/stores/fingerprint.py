"""Fingerprints: how a store identifies a secret that it does not keep."""

from __future__ import annotations

import hashlib
import hmac


def compute_fingerprint(salt: bytes, secret: str) -> str:
    """Return a digest of a secret with the store's own salt."""
    return hmac.new(salt, secret.encode(), hashlib.sha256).hexdigest()[:32]
