"""Checks on a request's head, before its body is read: address, token, and no web pages."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from ..util.http_server.request_parser import BadRequest, HttpRequest
from .routes import Route, RouteRefused, find_route
from .tokens import TokenHolder, TokenTable, find_presented, is_login

_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_LOGIN: Final = (
    "this is the login of a subscription, which must not be shared: the gateway serves API keys. Set the program's key "
    "to the gateway's token; agentos env shows the variables"
)
_WITHOUT_ONE: Final = "the gateway's token is missing or wrong: agentos env shows the variables that a program needs"


class Admission:
    """Checks heads. *hosts* are the names under which the gateway is reached, None: any, as on a unix socket.

    With *any_address* an address in numbers is accepted too: for a gateway that other machines use.
    """

    def __init__(self, tokens: TokenTable, hosts: frozenset[str] | None, *, any_address: bool = False) -> None:
        self._tokens = tokens
        self._hosts = hosts
        self._any_address = any_address  # numbers are no names: nobody else can have them

    def _is_own_name(self, host: str) -> bool:
        return (self._hosts is not None and host in self._hosts) or (self._any_address and _is_address(host))

    def check_head(self, head: HttpRequest) -> None:
        """Raise BadRequest if the request is not to be read."""
        self.admit(head)

    def admit(self, head: HttpRequest) -> tuple[TokenHolder, Route]:
        """Return who asks, and for which call. Raises BadRequest."""
        headers = head.headers
        if self._hosts is not None and not self._is_own_name(_strip_port(headers.get("host", ""))):
            # A page of another site may resolve its name to this machine (DNS rebinding), but cannot set this header.
            raise BadRequest(403, "the Host header is not the gateway's address", head)
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            raise BadRequest(403, "the gateway does not serve web pages", head)
        presented = list(find_presented(headers, head.query))
        holder = next((found for token in presented if (found := self._tokens.find(token)) is not None), None)
        if holder is None:
            raise BadRequest(401, _LOGIN if any(map(is_login, presented)) else _WITHOUT_ONE, head)
        try:
            return holder, find_route(head.method, head.path, headers)
        except RouteRefused as refused:
            raise BadRequest(refused.status, refused.why, head) from None


def build_hosts(listen: str, names: Iterable[str] = ()) -> frozenset[str]:
    """Return the names under which a gateway that listens on *listen* is reached; *names* are others of it."""
    return _LOOPBACK | {listen.lower(), *(name.lower() for name in names)}


def is_loopback(host: str) -> bool:
    """Return True if *host* is an address of this machine alone."""
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _strip_port(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
