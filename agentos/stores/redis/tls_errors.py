"""Explain TLS failures of a connection, and what a person can do about them."""

from __future__ import annotations

import re
import ssl
from typing import Final

_OF_SERVER: Final = "name the file of the authority that signed it with ?ssl_ca_certs=/path/to/ca.pem in the URL"
_OF_CLIENT: Final = "name that with ?ssl_certfile=...&ssl_keyfile=... in the URL"
_NAME: Final = "the URL has to name the server as its certificate does"
_DATE: Final = "the server needs another, unless the clock of this machine is wrong"
_REMEDIES: Final = {9: _DATE, 10: _DATE, 62: _NAME, 64: _NAME}  # OpenSSL's X509_V_ERR_...; others concern the authority

_NO_FILE: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_NO_USE: Final = re.compile(r"X509|PEM lib|cadata|KEY_VALUES_MISMATCH|No cipher")
_CLIENT_REFUSED: Final = re.compile(r"ALERT_\w*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED)")

# A server without TLS does not understand a handshake; one that ends it with an alert does speak TLS.
_NO_TLS: Final = re.compile(r"^no answer|\[SSL: (?!\w*ALERT)")
_ENDED: Final = re.compile(r"EOF occurred|closed by server|closed the connection|reset by peer")
_GARBLED: Final = re.compile(r"Protocol Error")


def is_encrypted(shown: str) -> bool:
    """Return whether the URL of a server requires TLS."""
    return shown.partition("://")[0] in ("rediss", "valkeys")


def explain_tls_error(error: Exception) -> str | None:
    """Return why no retry helps and what does: a certificate, or an option for TLS. None: another error.

    *error* is one of a connection with TLS.
    """
    for cause in (error, error.__context__):  # the error from which redis-py made it
        if isinstance(cause, ssl.SSLCertVerificationError):
            remedy = _REMEDIES.get(cause.verify_code, _OF_SERVER)
            return f"its certificate is not accepted ({cause.verify_message.rstrip('.')}): {remedy}"
        is_tls = isinstance(cause, ssl.SSLError)
        if is_tls and _CLIENT_REFUSED.search(str(cause)):
            return f"it does not accept this client without a certificate that it knows: {_OF_CLIENT}"
        if isinstance(cause, _NO_FILE) or (is_tls and _NO_USE.search(str(cause))):
            return f"what an option ssl_... of its URL names cannot be used ({_error_text(cause)})"
    return None


def suggest_url_fixes(text: str, shown: str) -> list[str]:
    """Suggest what may be wrong with the URL of a server that has never been reached, judging by the error."""
    scheme = shown.partition("://")[0]
    if not is_encrypted(shown):
        is_likely = scheme != "unix" and (_ENDED.search(text) or _GARBLED.search(text))
        return [f"if the server uses TLS, the URL must begin with {scheme}s://"] if is_likely else []
    found = []
    if _NO_TLS.search(text):
        found.append(f"if the server does not use TLS, the URL must begin with {scheme[:-1]}://")
    if _ENDED.search(text):
        found.append(f"if it requires a client certificate, {_OF_CLIENT}")
    return found


def _error_text(cause: BaseException | None) -> str:
    """Return the error's own text, which contains no value, without Python's line of source."""
    return re.sub(r" \(_ssl\.c:\d+\)", "", str(getattr(cause, "strerror", None) or cause))
