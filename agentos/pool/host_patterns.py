"""Normalize the hosts that a credential names: one spelling each, and nothing that could be read as another host."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_LABEL: Final = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_NAME: Final = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_LONGEST_NAME: Final = 253
_WITH_PORT: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::([0-9]{1,5}))?")
# Resolvers read anything that ends like this as an address: "0x7f.1" and "2130706433" too.
_ENDS_IN_A_NUMBER: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")


def normalize_host(text: object) -> str | None:
    """Normalize a host: lower case, no final dot, an address as ``::1`` or ``[::1]:8080``. None if invalid.

    A host without a port stands for every port, ``*.example.com`` for all that is below example.com. Invalid are a
    scheme, a path, a star elsewhere, letters beyond ASCII. Never raises.
    """
    if not isinstance(text, str) or not text.isascii():
        return None
    text = text.lower()
    if text.count(":") > 1 and not text.startswith("["):
        return _address(text, 6)
    parts = _WITH_PORT.fullmatch(text)
    if parts is None:
        return None
    named, port = parts.groups()
    host = _address(named[1:-1], 6) if named.startswith("[") else _name(named.removesuffix("."))
    if host is None or port is None:
        return host
    if not 1 <= int(port) <= 65_535:
        return None
    return f"[{host}]:{int(port)}" if ":" in host else f"{host}:{int(port)}"


def _name(text: str) -> str | None:
    if len(text) > _LONGEST_NAME or not _NAME.fullmatch(text):
        return None
    return _address(text, 4) if _ENDS_IN_A_NUMBER.fullmatch(text) else text


def _address(text: str, version: int) -> str | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    # A zone, as in fe80::1%eth0, is valid on one machine only.
    return str(address) if address.version == version and "%" not in text else None
