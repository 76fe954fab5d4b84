"""Probe the address of a Dask scheduler, to report within seconds what is wrong with it.

Dask's own client takes longer, hangs where something else listens, and then reports "timed out".
"""

from __future__ import annotations

import socket
import ssl
import struct
import time

_LONGEST_GREETING = 2**20  # Dask's has some hundred bytes


class NoScheduler(OSError):
    """No Dask scheduler at that address. The text says what was found instead, and what to do."""


def probe_scheduler(host: str, port: int, tls: ssl.SSLContext | None, patience: float) -> None:
    """Raise ``NoScheduler`` unless a server at that address sends Dask's greeting within *patience* seconds."""
    until = time.monotonic() + patience
    try:
        with socket.create_connection((host, port), patience) as bare:
            try:
                if tls is None:
                    _read_greeting(bare, until)
                else:
                    with tls.wrap_socket(bare, server_hostname=host) as wrapped:
                        _read_greeting(wrapped, until)
            except TimeoutError:
                raise NoScheduler(_describe_silence(patience, tls)) from None
            except (ssl.SSLError, ConnectionError) as error:
                raise NoScheduler(
                    f"something answers there, but it is not a supported Dask scheduler: {error}"
                ) from None
    except NoScheduler:
        raise
    except socket.gaierror as error:
        raise NoScheduler(f"the host {host} cannot be resolved ({error.strerror})") from None
    except ConnectionRefusedError:
        raise NoScheduler(f"nothing listens there; start one: dask scheduler --port {port}") from None
    except TimeoutError:
        raise NoScheduler(f"no answer within {patience:g}s: is {host} up, and port {port} open to us?") from None


def _read_greeting(connection: socket.socket, until: float) -> None:
    """Read the length of the greeting, which a scheduler sends first."""
    received = b""
    while len(received) < 8:
        connection.settimeout(max(0.001, until - time.monotonic()))
        more = connection.recv(8 - len(received))
        if not more:
            raise NoScheduler("the connection is closed at once; it is not a Dask scheduler, or it refuses us")
        received += more
    if not 0 < struct.unpack("<Q", received)[0] <= _LONGEST_GREETING:
        raise NoScheduler("something answers there, but it is not a Dask scheduler")


def _describe_silence(patience: float, tls: ssl.SSLContext | None) -> str:
    other = "one that wants tls://" if tls is None else "one without TLS, which is dask://"
    return (
        f"something listens there, but has not greeted as a Dask scheduler within {patience:g}s (the port of its "
        f"dashboard? {other}? one that hangs?)"
    )
