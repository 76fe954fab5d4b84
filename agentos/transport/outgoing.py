"""Build the request that is sent: a copy with the secret, addressed to the credential's base URL.

The SDK's own request never contains a secret, because exceptions carry it and programs log it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from ..pool.allowed_hosts import Origin, is_sendable, rewrite_target
from ..pool.credential import Credential
from ..pool.secret import Secret
from .auth_header import put_secret
from .httpx_compat import find_library


@lru_cache(maxsize=256)
def _readdress(url: Any, origin: Origin, target: bytes) -> Any:
    """Return *url* at another origin. Programs call few addresses, and each is parsed once."""
    return url.copy_with(scheme=origin.scheme, host=origin.host, port=origin.port, raw_path=target)


class OutgoingRequest(NamedTuple):
    """A request to send, its origin, the provider that will answer, and the secret in it."""

    request: Any
    origin: Origin
    provider: str | None
    secret: Secret


def build_outgoing(
    credential: Credential,
    name: str,
    request: Any,
    special: dict[bytes, bytes],
    origin: Origin,
    host: bytes,
    auth: str | None,
    bases: tuple[str, ...] = (),
) -> OutgoingRequest:
    """Build the request that is sent with *credential*, called *name*, from *request*, addressed to *origin*.

    *host* is *origin* as a ``Host`` header, *special* has the special headers, *auth* is the header the user chose,
    *bases* are the base URLs of the pool's keys at *origin*. Raises ValueError for a secret that a header cannot carry:
    HTTP libraries quote such a value in their errors.
    """
    if not is_sendable(credential):
        raise ValueError(
            f"the secret of {name} cannot be sent in a header: it has blanks, line ends or letters beyond ASCII"
        )
    url, rewritten = request.url, credential.base_url is not None
    if credential.base_url is not None:
        path, _, query = url.raw_path.partition(b"?")
        origin, target = rewrite_target(credential.base_url, origin, path, query, bases)
        url = _readdress(url, origin, target)
        host = url.netloc
    provider = origin.provider or credential.provider
    if provider == "gemini" and b"key=" in url.query:
        url = url.copy_remove_param("key")  # accepted there too, and it would be logged
    extensions = request.extensions
    if "target" in extensions:  # overrides the address of the url
        extensions = {name: value for name, value in extensions.items() if name != "target"}
    request_class = find_library(request).Request
    copy = request_class(request.method, url, headers=request.headers, stream=request.stream, extensions=extensions)
    put_secret(copy.headers, special, credential.secret, auth, provider, rewritten=rewritten)
    if special.get(b"host") != host:
        copy.headers["host"] = host.decode("ascii")
    return OutgoingRequest(copy, origin, provider, credential.secret)
