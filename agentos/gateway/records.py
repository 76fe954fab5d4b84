"""Records of requests: what each of them was, who served it, how long it waited and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ..costs.usage import NO_USAGE, Usage
from ..util.private_folder import PrivateFolder

FILE: Final = "requests.jsonl"
_LARGEST: Final = 32 * 1024 * 1024
_KEPT: Final = 3  # older files
_READ_AGAIN: Final = 4 * 1024 * 1024  # bytes, after a restart


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """One request through the gateway. It has no part of a body, no token and no secret."""

    at: float  # epoch seconds at its arrival
    item: str | None
    attempt: int | None
    key: str | None  # the name of the credential that served it, or refused it last
    provider: str
    operation: str
    model: str | None
    session: str | None
    agent: str | None
    status: int  # that the client got; 0: it left before
    outcome: str  # done, refused, left, cut off, or in one word why the gateway refused it
    waited: float  # seconds for a key
    seconds: float  # in all
    refusals: int  # keys that refused it before
    request_id: str | None  # the provider's
    usage: Usage = NO_USAGE

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        fields = asdict(self)
        fields.update(
            at=round(self.at, 3),
            waited=round(self.waited, 3),
            seconds=round(self.seconds, 3),
            usage=self.usage.to_json(),
        )
        return fields


class RequestFile:
    """``requests.jsonl``, readable by its owner only; a large one is set aside, and the oldest is removed."""

    def __init__(self, folder: PrivateFolder, *, largest: int = _LARGEST) -> None:
        self._folder = folder
        self._largest = largest
        self._file = folder.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, request: GatewayRequest) -> None:
        """Append a line. A full disk loses lines, not requests."""
        line = json.dumps(request.to_json(), ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        try:
            os.write(self._file, line)
            if os.fstat(self._file).st_size > self._largest:
                self._rotate()
        except OSError:
            pass

    def read_last_keys(self) -> dict[str, str]:
        """Return the key that served each session last, by the newest lines of the file."""
        found: dict[str, str] = {}
        with open(self._folder.open(FILE, os.O_RDONLY), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _READ_AGAIN))
            for line in file:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    fields = json.loads(line)
                    if fields["session"] and fields["outcome"] == "done":
                        found[str(fields["session"])] = str(fields["key"])
        return found

    def _rotate(self) -> None:
        path = Path(self._folder)
        names = [path / FILE, *(path / f"{FILE}.{number}" for number in range(1, _KEPT + 1))]
        # Another gateway may have set it aside, or a person removed it.
        if names[0].exists() and os.path.samestat(names[0].stat(), os.fstat(self._file)):
            for newer, older in reversed(list(pairwise(names))):
                if newer.exists():
                    newer.replace(older)
        opened = self._folder.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.close(self._file)  # only now: a closed descriptor may become another file's
        self._file = opened

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
