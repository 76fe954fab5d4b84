"""The process of a run's gateway: ``python -m agentos.cli.gateway.gateway_child``, for runs of Python functions.

It gets its keys and the valid item tokens on standard input, as one line of JSON, and then commands; end of input ends
it. On standard output it says where it listens, and writes a line for each request and each command that it has obeyed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from ...util.startup_objects import exempt_startup_objects

if TYPE_CHECKING:
    from ...gateway import Gateway, GatewayRequest
    from ...pool.credential import Credential

_WAITING_EVERY = 1.0  # seconds
_LONGEST_LINE = 1 << 30


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


async def _serve() -> None:
    from ...gateway import Gateway, GatewaySettings
    from ...pool.protocols import runtime_of
    from ...workflows.parallel import CredentialCoordinator

    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    config = json.loads(await reader.readline())
    pool = CredentialCoordinator([_build_credential(each) for each in config["credentials"]], store=config["store"])
    try:
        runtime_of(pool).masker.add(config["stem"])
        gateway = Gateway(
            runtime_of(pool),
            partial(pool.async_transport, requester="gateway"),
            port=config["port"],
            token=config["token"],
            settings=GatewaySettings(max_wait=config["max_wait"], park_after=config["park_after"]),
            on_request=_write_request,
        )
        for item in config["items"]:
            _admit(gateway, *item)
        reading = asyncio.create_task(_obey(gateway, reader))  # what was written before it listens is known before, too
        async with gateway:
            exempt_startup_objects()
            _write({"listening": {"url": gateway.url, "port": gateway.port, "token": gateway.token}})
            await _report_waiting(gateway, reading)
    finally:
        pool.close()


def _admit(gateway: Gateway, token: str, item_id: str, attempt: int) -> None:
    from ...gateway.tokens import TokenHolder

    gateway.tokens.admit(token, TokenHolder(item_id, attempt))


async def _obey(gateway: Gateway, reader: asyncio.StreamReader) -> None:
    """Accept and refuse item tokens as the run says, until standard input ends."""
    ending: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        command = json.loads(line)
        if "issue" in command:
            _admit(gateway, *command["issue"])
            _write({"answered": command["number"]})
        else:
            task = asyncio.create_task(_end_attempt(gateway, command["revoke"], command["number"]))
            ending.add(task)
            task.add_done_callback(ending.discard)


async def _end_attempt(gateway: Gateway, token: str, number: int) -> None:
    """Refuse *token*, end its requests, and say when these and all that were answered are recorded."""
    holder = gateway.tokens.revoke(token)
    if holder is not None:
        await gateway.end_requests(holder)
    await gateway.wait_recorded()
    _write({"answered": number})


async def _report_waiting(gateway: Gateway, reading: asyncio.Task[None]) -> None:
    """Say how many requests wait when it has changed, until *reading* ends."""
    told = 0
    while not reading.done():
        await asyncio.wait((reading,), timeout=_WAITING_EVERY)
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
    try:
        asyncio.run(_serve())
    except BrokenPipeError:
        return 0  # the run is gone
    except OSError as error:
        _write({"error": error.strerror or type(error).__name__})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
