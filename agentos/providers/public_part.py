"""The public part of a key: what everybody knows of it, such as its provider's prefix."""

from __future__ import annotations

import re
from typing import Final

from .key_owner import KEY_FORMS

# Beginnings of keys. Those that identify a provider are in its KeyForm; these are longer, or of several providers.
PUBLIC_PREFIXES: Final = (
    *(prefix for form in KEY_FORMS for prefix in form.prefixes),
    *("sk-", "sk-ant-api03-", "sk-ant-admin01-", "sk-ant-oat01-", "sk-or-v1-", "sk-lf-", "AIzaSy", "ya29.", "AKIA"),
    *("hf_", "nvapi-", "r8_", "jina_", "tvly-", "voyage-", "glpat-", "ghr_", "xoxb-"),
)

_JWT_HEADER: Final = re.compile(r"eyJ[A-Za-z0-9_-]+\.")
# The first line, and the beginning of the content, which is the same for all keys of one kind and length.
_PEM_HEADER: Final = re.compile(
    r"\s*-----BEGIN [A-Z0-9 ]+-----\s+(?:M[A-Za-z0-9+/]{6,44}?(?:AAoI[A-Za-z]{2}Q|AAKC[A-Za-z]{2}EA|IBAQQg|BCIEI))?"
)
_PEM_FOOTER: Final = re.compile(r"\s*-----END [A-Z0-9 ]+-----\s*\Z")


def private_part(secret: str) -> str:
    """Return *secret* without its public part: the prefix of a provider, the header of a JWT, the frame of a PEM."""
    header = _PEM_HEADER.match(secret)
    if header is not None:
        footer = _PEM_FOOTER.search(secret, header.end())
        return secret[header.end() : len(secret) if footer is None else footer.start()]
    header = _JWT_HEADER.match(secret)
    if header is not None:
        return secret[header.end() :]
    return secret[max((len(prefix) for prefix in PUBLIC_PREFIXES if secret.startswith(prefix)), default=0) :]
