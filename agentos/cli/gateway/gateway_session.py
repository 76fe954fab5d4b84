"""One session of ``agentos gateway``: open the pool, listen, say where, and serve until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ...util.startup_objects import exempt_startup_objects
from ..exit_codes import ExitCode
from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...gateway import Gateway
    from ...gateway.server_file import ServerFile
    from ..config.key_selection import SelectedKey

_DESCRIPTORS = 65_536  # two for each request: more than ten thousand can be held


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The parsed options of the command."""

    port: int
    socket: Path | None
    keys: tuple[str, ...]
    slots: int | str | None
    store: str | None
    max_wait: float | None
    park_after: float | None
    new_token: bool
    listen: str
    token: str | None = field(repr=False)
    host_names: tuple[str, ...]
    config: Path | None
    verbose: bool


def run_gateway(options: GatewayOptions, out: TextIO) -> int:
    """Serve until a signal; return the exit code."""
    from ...gateway.records import RequestFile
    from ...gateway.server_file import ServerFile
    from ...stores.sqlite.location import state_folder
    from ...util.private_folder import PrivateFolder, make_folders
    from ..session.run_pool import build_key_pool

    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING, format="agentos: %(message)s", stream=sys.stderr
    )
    keys, store = _load_keys(options)
    folder = state_folder(os.environ) / "gateway"
    make_folders(folder)
    pool = build_key_pool(keys, store, "--store")
    with contextlib.ExitStack() as ends:
        ends.callback(pool.close)
        private = ends.enter_context(PrivateFolder.at(folder))
        records = RequestFile(private)
        ends.callback(records.close)
        file = ServerFile(private)
        token = options.token
        if token is None and options.port and not options.new_token:
            token = file.find_token(options.port)
        from ...gateway import Gateway, GatewaySettings
        from ...pool.protocols import runtime_of

        served = Gateway(
            runtime_of(pool),
            partial(pool.async_transport, requester="gateway"),
            listen=options.listen,
            host_names=options.host_names,
            port=options.port,
            unix_socket=options.socket,
            token=token,
            settings=GatewaySettings(max_wait=options.max_wait, park_after=options.park_after),
            on_request=records.add,
        )
        served.remember_sessions(records.read_last_keys())
        raise_descriptor_limit()
        try:
            return asyncio.run(_serve(served, file, options, keys, out, folder))
        except OSError as error:
            where = error.filename or (f"{options.listen}:{options.port}" if options.port else options.listen)
            raise UsageError(f"the gateway cannot listen on {where}: {error.strerror or error}") from None


def _load_keys(options: GatewayOptions) -> tuple[list[SelectedKey], str]:
    from ..config.files import current_folder, load_settings
    from ..config.key_selection import load_credentials
    from ..config.slots_choice import SlotsChoice

    settings = load_settings(options.config, current_folder(), os.environ)
    for warning in settings.warnings:
        print(f"agentos: {warning}", file=sys.stderr)
    choice = SlotsChoice(for_all=options.slots, otherwise=settings.value("slots"), makes_calls=True)  # type: ignore[arg-type]
    keys = load_credentials(settings, list(options.keys), os.environ, slots=choice)
    if not keys:
        raise UsageError("the gateway needs keys", "give some with --keys, or put them into agentos.toml")
    return keys, options.store or settings.value("store") or "sqlite"


async def _serve(
    served: Gateway, file: ServerFile, options: GatewayOptions, keys: list[SelectedKey], out: TextIO, folder: Path
) -> int:
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, signals.put_nowait, int(number))
    async with served:
        exempt_startup_objects()
        file.write(url=served.url, port=served.port, token=served.token, socket=options.socket)
        _say_where(served, options, keys, out, folder)
        first = await signals.get()
        if served.open_requests:
            print(
                f"agentos: closing; {served.open_requests} requests are in progress (again to end them)",
                file=sys.stderr,
                flush=True,
            )
        draining = loop.create_task(served.drain())
        second = loop.create_task(signals.get())
        await asyncio.wait((draining, second), return_when=asyncio.FIRST_COMPLETED)
        ended = draining.done()
        for task in (draining, second):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    if not options.port:
        file.remove(served.port)
    if ended:
        return int(ExitCode.OK)
    return int(ExitCode.INTERRUPTED if first == signal.SIGINT else ExitCode.TERMINATED)


def _say_where(served: Gateway, options: GatewayOptions, keys: list[SelectedKey], out: TextIO, folder: Path) -> None:
    """Print the base URLs, and where the token is; the token itself is not printed."""
    counts = Counter(key.provider or "unknown" for key in keys)
    shared = ", ".join(f"{count} of {provider}" for provider, count in sorted(counts.items()))
    lines = [f"agentos gateway: {served.url} with {len(keys)} key{'' if len(keys) == 1 else 's'}: {shared}"]
    paths = {"openai": "/v1", "azure": "/v1", "anthropic": "", "gemini": ""}
    for provider in sorted(counts):
        if provider != "unknown":
            path = paths.get(provider, f"/{provider}/v1")
            lines.append(f"  {provider:<10} base URL {served.url}{path}")
    if options.socket is not None:
        lines.append(f"  socket     {options.socket}")
    lines.append(f"  token      in {folder / f'{served.port}.json'}")
    lines.append('  a program: eval "$(agentos env claude)"')
    print("\n".join(lines), file=out, flush=True)


def raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system does, up to what ten thousand held requests need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
