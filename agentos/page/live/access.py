"""Access to the live page: only requests to this address, from its own page, with the token of this server."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Final

TOKEN_HEADER: Final = "x-agentos-token"  # noqa: S105 - the name of a header
_SITES: Final = ("same-origin", "none")


class PageAccess:
    """Checks requests to the server at *port* of this machine. ``token`` is valid as long as the server runs."""

    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(32)
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    def refuse(self, headers: Mapping[str, str], *, with_token: bool) -> tuple[int, str] | None:
        """Return the status and reason with which a request is refused; None if it is allowed.

        Another ``Host`` is a name that somebody made resolve to this machine; another ``Origin`` is a foreign page.
        """
        host = headers.get("host", "")
        if host not in self._hosts:
            return 403, "this page is served to 127.0.0.1 only"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "requests of other pages are refused"
        if headers.get("sec-fetch-site", "none") not in _SITES and with_token:
            return 403, "requests of other pages are refused"
        if with_token and not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self.token.encode()):
            return 401, "the token is missing or that of another server: open the address that agentos watch printed"
        return None
