"""The process of a run's gateway: ``python -m agentos.cli.gateway.gateway_child``, for runs of Python functions.

It gets its keys on standard input, as one line of JSON, and then commands; end of input ends it. On standard output it
says where it listens, and writes a line for each request.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...gateway import Gateway, GatewayRequest
    from ...pool.credential import Credential

_WAITING_EVERY = 1.0  # seconds


def describe_credential(credential: Credential) -> dict[str, Any]:
    """Return a credential, with its secret, as JSON for the gateway's process."""
    return {
        "secret": credential.secret.reveal(),
        "name": credential.name,
        "slots": credential.slots,
        "quota": credential.quota,
        "limits": [asdict(limit) for limit in credential.limits],
        "base_url": credential.base_url,
        "hosts": list(credential.hosts),
        "env": dict(credential.env),
        "labels": dict(credential.labels),
        "provider": credential.provider,
    }


def _build_credential(fields: dict[str, Any]) -> Credential:
    from ...pool.credential import Credential
    from ...pool.limit import Limit

    limits = [Limit(**limit) for limit in fields.pop("limits")]
    return Credential(limits=limits, **fields)


def _write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _write_request(request: GatewayRequest) -> None:
    _write({"request": request.to_json()})


async def _serve(config: dict[str, Any]) -> None:
    from ...gateway import Gateway, GatewaySettings
    from ...pool.protocols import runtime_of
    from ...workflows.parallel import CredentialCoordinator

    pool = CredentialCoordinator([_build_credential(each) for each in config["credentials"]], store=config["store"])
    try:
        gateway = Gateway(
            runtime_of(pool),
            partial(pool.async_transport, requester="gateway"),
            port=config["port"],
            token=config["token"],
            settings=GatewaySettings(max_wait=config["max_wait"], park_after=config["park_after"]),
            on_request=_write_request,
        )
        async with gateway:
            _write({"listening": {"url": gateway.url, "port": gateway.port, "token": gateway.token}})
            await _obey(gateway)
    finally:
        pool.close()


async def _obey(gateway: Gateway) -> None:
    """Say when what was answered is recorded, if asked, and how many requests wait; until standard input ends."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def read() -> None:
        while line := await reader.readline():
            await gateway.wait_recorded()
            _write({"flushed": json.loads(line)["flush"]})
        ended.set()

    reading = loop.create_task(read())
    told = 0
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), _WAITING_EVERY)
        except TimeoutError:
            if gateway.waiting_requests != told:
                told = gateway.waiting_requests
                _write({"waiting": told})
    await reading


def main() -> int:
    """Serve until standard input ends."""
    import signal

    from ...util.process_hardening import harden_process

    harden_process()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its run, not before
    config = json.loads(sys.stdin.readline())
    try:
        asyncio.run(_serve(config))
    except BrokenPipeError:
        return 0  # the run is gone
    except OSError as error:
        _write({"error": error.strerror or type(error).__name__})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
