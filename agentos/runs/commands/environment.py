"""Build the environment of a command: the user's, without secrets except its own, with the AGENTOS_ variables."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from .helper_process import MARK

# Linux limits one variable or argument to 128 KiB, including its name and the final NUL.
MAX_VARIABLE = 131_072 - 64

_OF_AN_ITEM = frozenset(
    f"AGENTOS_{name}"
    for name in (
        *("RUN_ID", "ITEM", "ITEM_FILE", "ITEM_ID", "ATTEMPT", "SLOT", "CREDENTIAL_NAME", "BASE_URL"),
        *("WORKFLOW_DB", "OUTCOME", "MARK", "GATEWAY_URL", "GATEWAY_TOKEN"),
    )
)
# The store's URL with its password. A nested agentos is given its store explicitly.
_STORE = "AGENTOS_STORE"
_LEFT_OUT = _OF_AN_ITEM | {_STORE}
# Variables of scripts with placeholders (``shell_quoting``): one that is inherited would stay exported.
_OF_A_SCRIPT = re.compile(r"agentos_[0-9]+")
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")


def base_environment(
    environ: Mapping[str, str], without: Collection[str], holds_secret: Callable[[str], bool]
) -> dict[str, str]:
    """Return the environment of all commands, without the variables that hold a secret of the pool.

    Also left out are AGENTOS_STORE, the variables that describe an item of a run in which this one is nested, and the
    names that scripts of commands use for items, which must not be exported.
    """
    return {
        name: value
        for name, value in environ.items()
        if name not in without
        and name not in _LEFT_OUT
        and _OF_A_SCRIPT.fullmatch(name) is None
        and not holds_secret(value)
    }


class CommandEnvironment:
    """Builds the variables of each attempt. *folder* is private to the run and created when needed."""

    def __init__(self, run_id: str, environ: Mapping[str, str], folder: Path) -> None:
        self._run_id = run_id
        self._folder = folder
        found = _TRACEPARENT.fullmatch(environ.get("TRACEPARENT", ""))
        self._trace = found[1] if found else secrets.token_hex(16)
        self._flags = found[2] if found else "01"

    def build_variables(
        self, *, item_id: str, item: str, attempt: int, slot: int, credential: str | None, checkpoint: Path, mark: str
    ) -> dict[str, str]:
        """Return the variables of one attempt."""
        variables = {
            "AGENTOS_RUN_ID": self._run_id,
            "AGENTOS_ITEM_ID": item_id.replace("\0", "\\x00"),
            "AGENTOS_ATTEMPT": str(attempt),
            "AGENTOS_SLOT": str(slot),
            "AGENTOS_WORKFLOW_DB": str(checkpoint),
            MARK: mark,
            "AGENTOS_OUTCOME": str(self.outcome_file(item_id, attempt)),
            "TRACEPARENT": f"00-{self._trace}-{secrets.token_hex(8)}-{self._flags}",
        }
        if credential is not None:
            variables["AGENTOS_CREDENTIAL_NAME"] = credential
        if "\0" not in item and len(os.fsencode(item)) <= MAX_VARIABLE:
            variables["AGENTOS_ITEM"] = item
        else:
            # A variable cannot hold the item: pass it in a file.
            path = self._file("item", item_id, attempt)
            path.write_text(item, encoding="utf-8", errors="surrogateescape")
            variables["AGENTOS_ITEM_FILE"] = str(path)
        return variables

    def outcome_file(self, item_id: str, attempt: int) -> Path:
        """Return the path where the command may report its outcome."""
        return self._file("outcome", item_id, attempt)

    def remove_files(self, item_id: str, attempt: int) -> None:
        """Remove the files of a finished attempt."""
        for kind in ("outcome", "item"):
            try:
                self._file(kind, item_id, attempt).unlink(missing_ok=True)
            except OSError:
                pass

    def _file(self, kind: str, item_id: str, attempt: int) -> Path:
        digest = hashlib.blake2b(item_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        return self._folder / f"{kind}-{digest}-{attempt}"
