"""A request as it is sent: a copy with the secret in its place, to the base URL of its credential.

The SDK's own request never holds a secret: it is what exceptions carry and people log.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..pool.allowed_hosts import Origin, is_sendable, rewrite_target
from ..pool.credential import Credential
from ..pool.secret import Secret
from .auth_header import put_secret
from .httpx_compat import find_library


class OutgoingRequest(NamedTuple):
    """What is sent, where to, and whose answer is to be expected."""

    request: Any
    origin: Origin
    provider: str | None
    secret: Secret


def build_outgoing(
    credential: Credential,
    name: str,
    request: Any,
    found: dict[bytes, bytes],
    place: Origin,
    host: bytes,
    auth: str | None,
    bases: tuple[str, ...] = (),
) -> OutgoingRequest:
    """*request*, addressed to *place*, as it goes out with *credential*, which is called *name*.

    *host* is that place as the ``Host`` header has it.

    *found* are its special headers, *auth* is the header that the user told, *bases* are the base URLs that keys of the
    pool have at *place*. Raises ValueError for a secret that no header can carry: HTTP libraries quote such a value in
    their errors.
    """
    if not is_sendable(credential):
        raise ValueError(
            f"the secret of {name} cannot be sent in a header: it has blanks, line ends or letters beyond ASCII"
        )
    url, moved = request.url, credential.base_url is not None
    if credential.base_url is not None:
        path, _, query = url.raw_path.partition(b"?")
        place, target = rewrite_target(credential.base_url, place, path, query, bases)
        url = url.copy_with(scheme=place.scheme, host=place.host, port=place.port, raw_path=target)
        host = url.netloc
    provider = place.provider or credential.provider
    if provider == "gemini" and b"key=" in url.query:
        url = url.copy_remove_param("key")  # where it is taken too, and where it would be logged
    extensions = request.extensions
    if "target" in extensions:  # another address than that of the url
        extensions = {name: value for name, value in extensions.items() if name != "target"}
    make = find_library(request).Request
    copy = make(request.method, url, headers=request.headers, stream=request.stream, extensions=extensions)
    put_secret(copy.headers, found, credential.secret, auth, provider, rewritten=moved)
    if found.get(b"host") != host:
        copy.headers["host"] = host.decode("ascii")
    return OutgoingRequest(copy, place, provider, credential.secret)
