"""The transports that send requests: the user's own, or one per library and proxy."""

from __future__ import annotations

from os import getpid
from typing import Any
from urllib.request import getproxies, proxy_bypass

from .httpx_compat import find_library

# The pool limits concurrent calls; a limit on connections would only make some of them time out.
_IDLE_CONNECTIONS = 100


class InnerTransports:
    """Find the transport for a request, and create it on first use.

    Proxies come from the environment, as in a client without an explicit transport. Raises TypeError if *inner*, the
    user's transport, is not of this *kind*.
    """

    def __init__(self, inner: Any, kind: str) -> None:
        if inner is not None:
            _require_transport(inner, kind)
        self._inner = inner
        self._kind = kind  # HTTPTransport or AsyncHTTPTransport
        self._proxies = {} if inner is not None else getproxies()
        self._made: dict[tuple[str, str | None, int], Any] = {}

    def for_request(self, request: Any) -> Any:
        library = find_library(request)
        if self._inner is not None:
            self._require_same_library(library)
            return self._inner
        proxy = self._proxy_for(request.url) if self._proxies else None
        key = (library.__name__, proxy, getpid())  # a forked child must not use its parent's connections
        made = self._made.get(key)
        if made is None:
            limits = library.Limits(max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS)
            made = self._made.setdefault(key, getattr(library, self._kind)(limits=limits, proxy=proxy))
            if self._kind == "AsyncHTTPTransport":
                from ..util.asyncio_network import use_asyncio  # here: clients of threads need no asyncio

                use_asyncio(library, made)
        return made

    def _require_same_library(self, library: Any) -> None:
        if find_library(self._inner, library) is not library:
            raise ValueError(
                f"inner is a transport of {find_library(self._inner).__name__}, and the client is one of "
                f"{library.__name__}: give it one of the same library"
            )

    def _proxy_for(self, url: Any) -> str | None:
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        if proxy is None or proxy_bypass(url.host) or (url.port and proxy_bypass(f"{url.host}:{url.port}")):
            return None
        return proxy if "://" in proxy else f"http://{proxy}"

    def all(self) -> list[Any]:
        """Return the existing transports, to be closed."""
        return list(self._made.values()) if self._inner is None else [self._inner]


def _require_transport(inner: Any, kind: str) -> None:
    asynchronous = kind == "AsyncHTTPTransport"
    method = "handle_async_request" if asynchronous else "handle_request"
    if isinstance(inner, type):
        given = f"the class {inner.__name__} itself"
    elif not callable(getattr(inner, method, None)):
        given = f"one of type {type(inner).__name__}"
    else:
        return
    raise TypeError(
        f"inner must be {'an asynchronous transport' if asynchronous else 'a transport'}, such as "
        f"httpx2.{kind}(proxy=...), not {given}: it has to have {method}(request)"
    )
