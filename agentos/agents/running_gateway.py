"""Find the gateway that runs on this machine, by the private files in which each gateway writes its address."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = "gateway"  # in the user's state folder; one file, NAME.json, for each gateway
_MAX_SIZE = 65_536


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway's address and token, as its file states them."""

    url: str
    token: str = field(repr=False)
    pid: int | None = None
    port: int | None = None


def find_gateways(folder: Path, *, is_alive: Callable[[int], bool] | None = None) -> list[RunningGateway]:
    """Return the gateways whose files are in *folder* and whose processes run, by port.

    A file that others may read or write, that is a link, or that is not a gateway's is left out.
    """
    alive = is_alive or _is_alive
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError:
        return []
    found = (_read(path) for path in paths)
    running = [each for each in found if each is not None and (each.pid is None or alive(each.pid))]
    return sorted(running, key=lambda each: each.port or 0)


def _read(path: Path) -> RunningGateway | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
                return None
            fields = json.loads(file.read(_MAX_SIZE))
    except (OSError, ValueError, RecursionError):
        return None
    return _parse(fields) if isinstance(fields, dict) else None


def _parse(fields: dict[str, Any]) -> RunningGateway | None:
    token, url, port, pid = (fields.get(name) for name in ("token", "url", "port", "pid"))
    port = port if isinstance(port, int) and 0 < port < 65_536 else None
    if not isinstance(url, str):
        url = None if port is None else f"http://127.0.0.1:{port}"
    if url is None or not isinstance(token, str) or not token:
        return None
    return RunningGateway(url.rstrip("/"), token, pid if isinstance(pid, int) and pid > 0 else None, port)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's, or out of reach
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True  # no such folder on this system
