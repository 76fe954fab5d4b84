"""The private file in which a gateway writes its address and token, for ``agentos env`` and for its own restart."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from ..util.private_folder import PrivateFolder
from .tokens import is_strong

_LARGEST: Final = 65_536


class ServerFile:
    """``PORT.json`` in the folder of gateways: address, port, process and token, readable by the user only."""

    def __init__(self, folder: PrivateFolder) -> None:
        self._folder = folder

    def find_token(self, port: int) -> str | None:
        """Return the token of the gateway that used *port* before; None if there was none."""
        try:
            found = json.loads(self._folder.read(_name(port), _LARGEST))
        except (OSError, ValueError):
            return None
        token = found.get("token") if isinstance(found, dict) else None
        return token if isinstance(token, str) and is_strong(token) else None

    def write(self, *, url: str, port: int, token: str, socket: Path | None) -> None:
        """Write the file of a gateway that listens."""
        fields: dict[str, Any] = {"url": url, "port": port, "pid": os.getpid(), "token": token}
        if socket is not None:
            fields["socket"] = str(socket)
        descriptor = self._folder.create(_name(port), 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(fields, file)
            file.write("\n")

    def remove(self, port: int) -> None:
        """Remove the file of a gateway that has ended and whose port nobody chose."""
        self._folder.unlink(_name(port))


def _name(port: int) -> str:
    return f"{port}.json"
