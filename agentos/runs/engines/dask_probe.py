"""A first look at the address of a scheduler, which tells within seconds what is wrong with it.

Dask's own client takes its time for that, for ever where something else listens, and then says "timed out".
"""

from __future__ import annotations

import socket
import ssl
import struct
import time

_LONGEST_GREETING = 2**20  # one of Dask has some hundred bytes


class NoScheduler(OSError):
    """There is none at that address. The text says what there is instead, and what to do."""


def probe_scheduler(host: str, port: int, tls: ssl.SSLContext | None, patience: float) -> None:
    """Raises ``NoScheduler`` unless something at that address greets as Dask does, within *patience* seconds."""
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
                raise NoScheduler(_silent(patience, tls)) from None
            except (ssl.SSLError, ConnectionError) as error:
                raise NoScheduler(
                    f"something answers there, but it is no Dask scheduler that we know: {error}"
                ) from None
    except NoScheduler:
        raise
    except socket.gaierror as error:
        raise NoScheduler(f"the host {host} is not known here ({error.strerror})") from None
    except ConnectionRefusedError:
        raise NoScheduler(f"nothing listens there; start one: dask scheduler --port {port}") from None
    except TimeoutError:
        raise NoScheduler(f"no answer within {patience:g}s: is {host} up, and port {port} open to us?") from None


def _read_greeting(connection: socket.socket, until: float) -> None:
    """A scheduler speaks first: the length of its greeting, and then that."""
    heard = b""
    while len(heard) < 8:
        connection.settimeout(max(0.001, until - time.monotonic()))
        more = connection.recv(8 - len(heard))
        if not more:
            raise NoScheduler("something there hangs up at once; it is no Dask scheduler, or does not want us")
        heard += more
    if not 0 < struct.unpack("<Q", heard)[0] <= _LONGEST_GREETING:
        raise NoScheduler("something answers there, but it is no Dask scheduler")


def _silent(patience: float, tls: ssl.SSLContext | None) -> str:
    other = "one that wants tls://" if tls is None else "one without TLS, which is dask://"
    return (
        f"something listens there, but has not greeted as a Dask scheduler within {patience:g}s (the port of its "
        f"dashboard? {other}? one that hangs?)"
    )
