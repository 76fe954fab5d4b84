"""The context of an attempt, passed to a worker that has a parameter named ``context``."""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Protocol

from ..costs.usage import NO_USAGE, Usage
from ..costs.usage_log import UsageLog
from ..pool.lease import ItemLease
from ..pool.requests import AbsurdUsage, parse_used
from ..providers.answers.usage import parse_reported_usage
from ..util.fork_hooks import ForkSafeLocks, register_fork_hooks
from ..util.private_folder import PrivateFolder, UnsafePath, folder_of, make_folders

# Lower case only: some file systems are case-insensitive.
_SAFE_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,79}")


class HttpClients(Protocol):
    """The HTTP clients of a run, which send the keys of its pool."""

    def get_client(self) -> Any: ...

    async def close_loop(self) -> None: ...

    def close(self) -> None: ...


class Context:
    """One attempt, as its worker sees it.

    ``checkpoint`` and ``settle`` raise ``LeaseLost``, as ``lease.reveal()`` does, once another process may have been
    granted the credential because this process was suspended for too long or did not reach the store. The item then
    runs again without losing a retry.
    """

    __slots__ = ("_clients", "_folder", "_usage_log", "attempt", "index", "item_id", "lease", "log", "stopping")

    def __init__(
        self,
        item_id: str,
        attempt: int,
        lease: ItemLease | None,
        stopping: threading.Event,
        folder: CheckpointFolder,
        index: int = 0,
        usage_log: UsageLog | None = None,
        clients: HttpClients | None = None,
    ) -> None:
        self.item_id = item_id
        self.index = index  # position in the input, from 0
        self.attempt = attempt  # 1 for the first
        self.lease = lease  # None without a pool, and with lease="call"
        self.stopping = stopping  # set when the run stops: finish soon, or raise agentos.Interrupted
        self.log = ItemLogger(logging.getLogger("agentos.worker"), {"item_id": item_id})
        self._folder = folder
        self._usage_log = usage_log
        self._clients = clients

    @property
    def http(self) -> Any:
        """The run's HTTP client, for ``OpenAI(api_key="pool", http_client=context.http)`` or for calls of your own.

        It is an ``httpx2.AsyncClient`` in a coroutine, else an ``httpx2.Client``. Its calls use the item's lease; with
        ``lease="call"`` each takes its own. The limits and the usage that answers state are read. All items share it:
        closing it does nothing, the run closes it at its end.
        """
        if self._clients is None:
            raise RuntimeError(
                "this run has no keys, which context.http sends: add --keys 'env:OPENAI_API_KEY*', or write "
                "agentos.toml with `agentos init` (in Python: ParallelCoordinator(..., CredentialCoordinator(...)))"
            )
        return self._clients.get_client()

    @property
    def checkpoint(self) -> Path:
        """Return the item's own path, for data that its next attempt needs. It is removed once the item is done."""
        if self.lease is not None:
            self.lease.require()
        return self._folder.path_for(self.item_id)

    def settle(self, used: Mapping[str, float] | None = None, /, **amounts: float) -> bool:
        """Report what the item's calls really used; see ``Lease.settle``. It is part of the item's result.

        Calls through ``context.http`` and the pool's transports report it by themselves.
        """
        if self.lease is None:
            if self._usage_log is not None:
                self._usage_log.set_total(None, None, read_usage(used, amounts))
            return False
        self.lease.require()
        return self.lease.settle(used, **amounts)


def read_usage(used: Mapping[str, float] | None, amounts: Mapping[str, float]) -> Usage:
    """Return the usage that an attempt without a lease reports. Raises ValueError if it is not one."""
    stated = parse_reported_usage(amounts if used is None else {**used, **amounts})
    try:
        parse_used("settle", stated.counted)
    except AbsurdUsage:
        return NO_USAGE
    return stated.billed


class ItemLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that puts ``[item id]`` before each line. The record has the id as ``item_id``, too."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        item = self.extra or {}
        return f"[{item.get('item_id')}] {msg}", {**kwargs, "extra": {**(kwargs.get("extra") or {}), **item}}


class CheckpointFolder(ForkSafeLocks):
    """The folder with the checkpoints of a run's items. Without a journal it is temporary, and created on first use.

    *inside* is the open parent folder of *folder*, if the caller has it. A symbolic link in place of *folder*, or of an
    item's path in it, raises UnsafePath: workers would write to the link's target.
    """

    def __init__(self, folder: Path | None, *, inside: PrivateFolder | None = None) -> None:
        self._folder = folder
        self._inside = inside
        self._temporary = folder is None
        self._lock = threading.Lock()
        self._used_names: set[str] = set()
        register_fork_hooks(self)

    def in_forked_child(self) -> None:
        self._lock = threading.Lock()

    def path_for(self, item_id: str) -> Path:
        name = build_file_name(item_id)
        with self._lock:
            path = self._make_folder(name) / name
            self._used_names.add(item_id)
            return path

    def ensure_folder(self) -> Path:
        """Return the folder; create it if it does not exist."""
        with self._lock:
            return self._make_folder()

    def _make_folder(self, name: str | None = None) -> Path:
        """Return the folder; raise UnsafePath if *name* in it is a symbolic link."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="agentos-"))
        if self._inside is None:
            make_folders(self._folder.parent)
        with folder_of(self._folder, self._inside) as parent:
            parent.make(self._folder.name)
            with parent.enter(self._folder.name) as folder:
                found = None if name is None else folder.find(name)
                if found is not None and stat.S_ISLNK(found.st_mode):
                    raise UnsafePath(folder.path / str(name), "is a link: remove it", is_link=True)
        return self._folder

    @property
    def used(self) -> bool:
        """True if an item has asked for its path."""
        return bool(self._used_names)

    def item_done(self, item_id: str) -> None:
        """Remove the item's checkpoint."""
        if self._folder is None or item_id not in self._used_names:
            return
        path = self._folder / build_file_name(item_id)
        self._used_names.discard(item_id)
        try:
            path.unlink(missing_ok=True)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)  # the worker created a folder there

    def on_run_end(self) -> None:
        if self._temporary and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        elif self._folder is not None:
            try:
                self._folder.rmdir()
            except OSError:
                pass  # not empty, or never created


def build_file_name(item_id: str) -> str:
    """Return a file name for an item: its id where that is a safe name, else the safe part of it and a hash."""
    if _SAFE_NAME.fullmatch(item_id) and not item_id.endswith("."):
        return item_id
    digest = hashlib.blake2b(item_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return re.sub(r"[^A-Za-z0-9_-]+", "-", item_id)[:60].strip("-") + f"~{digest}"
