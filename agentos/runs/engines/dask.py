"""Place worker slots on a Dask cluster as tasks, and monitor them. The slots connect to the driver themselves."""

from __future__ import annotations

import ipaddress
import logging
import math
import secrets
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import distributed

from ...errors import EngineUnavailable
from ...version import __version__
from ..cluster.driver.command_engine import ClusterCommandEngine
from ..cluster.driver.driver_server import DriverServer
from ..cluster.driver.engine import ClusterEngine
from ..cluster.worker.bootstrap import build_slot_task
from ..cluster.worker.client import DriverEndpoint
from ..core.states import Cause
from ..remote.dask_config import Dask
from .dask_probe import probe_scheduler
from .protocol import Engine

if TYPE_CHECKING:
    from ..execution.engine_run import EngineRun

log = logging.getLogger("agentos")

_Client: Any = distributed.Client  # its types are incomplete

_GREETING_TIMEOUT = 5.0
_CONNECT_TIMEOUT = 10.0
_ANSWER_TIMEOUT = 5.0
_ABANDON_TIMEOUT = 0.5
_CHECK_INTERVAL = 0.5
_COUNT_INTERVAL = 2.0  # for the number of the cluster's threads, where that matters
_UNSERVED = 0.1  # a worker of the run that waits so long for a slot is not just between two items
_SCHEDULER_LOST = 3.0  # seconds without contact
_LAST_ITEMS = 5.0  # seconds for running items after that
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 15.0  # before a failed slot is placed again
_FAILURES = 3  # in a row, with no worker ever joined: then stop the run
_PATIENCE = 10.0  # until a warning that no worker has joined


def dask_engine(run: EngineRun, place: Dask, **placing: Any) -> Engine:
    """Build the engine that runs the items of *run* on a Dask cluster: on any worker, or on those in *placing*.

    *placing* are arguments of ``Client.submit``: ``workers``, ``allow_other_workers``, ``resources``.
    """
    kind = ClusterCommandEngine if run.worker.is_command else ClusterEngine
    return kind(run, DaskPlacement(run, place, **placing), ttl=place.ttl)


class DaskPlacement:
    """Worker slots as tasks of a Dask cluster; each lasts as long as the run has work for it."""

    def __init__(self, run: EngineRun, place: Dask, **placing: Any) -> None:
        self._run = run
        self._place = place
        self._placing = placing
        self._client: Any = None
        self._is_ours = False
        self._address = ""
        self._prefix = f"agentos-seat-{secrets.token_hex(4)}"
        self._number = 0
        self._workers = 0
        self._width = 1
        self._max_slots = 0  # the number of slots the run could keep busy
        self._wanted = 0  # of them, those it can keep busy now
        self._needed = False
        self._count_at = 0.0
        self._endpoint: DriverEndpoint | None = None
        self._slots: list[Any] = []
        self._wake = threading.Event()
        self._closed = False
        self._failures = 0  # consecutive checks that found failed slots
        self._failed_at = self._place_again_at = 0.0
        self._reported_errors: set[str] = set()  # already logged
        self._lost_since: float | None = None

    # -- the WorkerPlacement protocol ---------------------------------------------------------------------------

    def open(self, workers: int) -> tuple[str, int, int]:
        """Connect to the scheduler. Raises ``EngineUnavailable``."""
        self._client = client = self._connect()
        self._address = client.scheduler.address
        state = self._run.state
        if state.options.ship_secrets and state.pool is not None and not _is_private(self._address):
            log.warning(
                "[COORDINATOR] secrets are shipped, but the connection to the Dask scheduler at %s is unencrypted: "
                "anyone who can read it, or its tasks, can join this run as a worker and receive them; use a tls:// "
                "scheduler, or set the secrets in the environment of the workers",
                self._address,
            )
        self._workers = workers
        try:
            self._max_slots = self._wanted = self._count_useful_slots()
        except OSError as error:
            raise self._unavailable(error) from None
        if self._run.worker.is_async:
            self._width = math.ceil(workers / self._max_slots)
        host, port = self._place.listening or (_find_own_address(self._address), 0)
        return host, port, self._width

    def _count_useful_slots(self) -> int:
        """Return the useful number of slots: one per worker; for coroutines, which share slots, one per thread."""
        places = min(self._workers, self._place.worker_slots or self._workers)
        if not self._run.worker.is_async:
            return places
        threads: int = sum(self._client.nthreads(callback_timeout=_ANSWER_TIMEOUT).values())
        return max(1, min(places, threads))

    def place(self, endpoint: DriverEndpoint, server: DriverServer) -> None:
        self._endpoint = endpoint
        threading.Thread(target=self._watch, args=(server,), name="agentos-slots", daemon=True).start()

    def add_slot(self) -> None:
        self._max_slots += 1
        self._wanted += 1
        self._wake.set()

    def request_slots(self) -> None:
        self._needed = True
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._endpoint is None:
            self._release()  # the watching thread has not started

    # -- the cluster --------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        given = self._place.cluster
        if not isinstance(given, str):
            if not given.asynchronous:
                if given.status != "running":
                    raise EngineUnavailable(place="the Dask cluster", detail=f"its Client is {given.status}")
                return given
            # An asynchronous client belongs to the caller's loop, which may be blocked on us.
            self._address, options = given.scheduler.address, {"security": given.security}
        else:
            scheme, _, rest = given.partition("://")
            self._address, options = f"{'tcp' if scheme == 'dask' else scheme}://{rest}", {}
            self._check_address()
        client = _Client.__new__(_Client)  # made in two steps, so that a failed one can be closed
        try:
            client.__init__(self._address, timeout=_CONNECT_TIMEOUT, set_as_default=False, name="agentos", **options)
        except Exception as error:  # noqa: BLE001 - e.g. a Dask worker at that address causes a TypeError
            _abandon(client)
            detail = str(error) if isinstance(error, OSError) else f"{error} (is it the port of a scheduler?)"
            raise self._unavailable(detail) from None
        self._is_ours = True
        return client

    def _check_address(self) -> None:
        """Raise ``EngineUnavailable`` early where the Dask client would time out or hang."""
        parts = urlsplit(self._address)
        tls = None
        if parts.scheme == "tls":
            tls = distributed.Security().get_connection_args("client")["ssl_context"]
            if tls is None:
                raise self._unavailable(
                    "Dask's settings name no certificates for tls://; set distributed.comm.tls.ca-file and "
                    "distributed.comm.tls.client.cert (or DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__CLIENT__CERT)"
                )
        assert parts.hostname is not None  # noqa: S101 - for the type checker: the address was checked before
        assert parts.port is not None  # noqa: S101
        try:
            probe_scheduler(parts.hostname, parts.port, tls, _GREETING_TIMEOUT)
        except OSError as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: BaseException | str) -> EngineUnavailable:
        return EngineUnavailable(place=f"the Dask scheduler at {self._address}", detail=str(error))

    # -- monitoring ---------------------------------------------------------------------------------------------

    def _watch(self, server: DriverServer) -> None:
        began_at, has_warned = time.monotonic(), False
        try:
            while not self._closed:
                self._wake.clear()
                if self._is_reachable(server):
                    self._check_slots(server)
                    if not has_warned and time.monotonic() > began_at + _PATIENCE:
                        has_warned = True
                        self._warn_if_no_worker(server)
                self._wake.wait(_CHECK_INTERVAL)
        except Exception as error:
            log.exception("[COORDINATOR] placing worker slots failed")
            self._run.shutdown.on_internal_error(error)
        finally:
            self._release()

    def _is_reachable(self, server: DriverServer) -> bool:
        """Return True if the scheduler is connected. While it is not, nothing starts; if that lasts, the run ends."""
        if self._client.status == "running":
            if self._lost_since is not None:
                self._lost_since = None
                server.pause(False)
            return True
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
            server.pause(True)  # workers that lose it too end soon, with the attempts they run
            log.warning("[COORDINATOR] the Dask scheduler at %s is unreachable; nothing more starts", self._address)
        is_lost = now > self._lost_since + _SCHEDULER_LOST or self._client.status == "closed"
        if is_lost and not self._run.state.closing:
            self._run.shutdown.stop(
                f"the loss of the Dask scheduler at {self._address}; {self._build_resume_hint()}",
                cause=Cause.FAULT,
                grace=_LAST_ITEMS,
            )
        return False

    def _build_resume_hint(self) -> str:
        cluster = "a cluster"
        if isinstance(self._place.cluster, str):
            port = urlsplit(self._address).port
            cluster = f"a scheduler there (dask scheduler --port {port}) and workers (dask worker {self._address})"
        return (
            f"start {cluster}, then this run again with the same journal: it continues where it stopped, and "
            "interrupted items run again"
        )

    def _check_slots(self, server: DriverServer) -> None:
        now = time.monotonic()
        failed = [slot for slot in self._slots if slot.status == "error"]
        ended = sum(slot.status == "finished" for slot in self._slots)
        self._slots = [slot for slot in self._slots if slot.status == "pending"]
        if self._run.state.closing:
            return
        self._adjust_worker_count(ended, now, server)
        if failed:
            self._on_failure(failed[0], now, server)
        elif self._failures and now > self._failed_at + 2 * _MAX_PAUSE:
            self._failures = 0
        while now >= self._place_again_at and len(self._slots) < self._wanted:
            self._slots.append(self._place_slot())

    def _adjust_worker_count(self, ended: int, now: float, server: DriverServer) -> None:
        """Adjust the wanted slots: one that ended is replaced only when a worker waits; a new thread gets one."""
        self._wanted -= ended
        if self._run.worker.is_async and now >= self._count_at:
            self._count_at = now + _COUNT_INTERVAL
            try:
                joined = max(0, self._count_useful_slots() - self._max_slots)
            except OSError:
                joined = 0  # no answer; checked again later
            self._max_slots += joined
            self._wanted += joined
        needed, self._needed = self._needed, False
        if needed or server.count_waiting(_UNSERVED):
            more = math.ceil(max(1, server.count_waiting()) / self._width)
            self._wanted = max(self._wanted, min(self._max_slots, len(self._slots) + more))

    def _place_slot(self) -> Any:
        assert self._endpoint is not None  # noqa: S101 - for the type checker: place() has set it
        self._number += 1
        python = None if self._run.worker.is_command else sys.version_info[:2]
        return self._client.submit(
            *build_slot_task(self._endpoint, python),
            key=f"{self._prefix}-{self._number}",
            pure=False,
            retries=0,
            **self._placing,
        )

    def _on_failure(self, slot: Any, now: float, server: DriverServer) -> None:
        """Place the slot again after a pause; stop the run if no worker ever joined."""
        error = _find_error(slot)
        text = self._run.state.masked(f"{type(error).__name__}: {error}")
        if text not in self._reported_errors:  # an unusable worker fails at each placement
            self._reported_errors.add(text)
            log.warning("[COORDINATOR] a worker slot on the Dask cluster failed: %s", text)
        self._failures += 1
        self._failed_at = now
        self._place_again_at = now + min(_FIRST_PAUSE * 2.0 ** (self._failures - 1), _MAX_PAUSE)
        if self._failures >= _FAILURES and not server.has_joined:
            self._run.shutdown.stop(
                f"workers of the Dask cluster that cannot join the run: {text}{_build_hint(error)}", cause=Cause.FAULT
            )

    def _warn_if_no_worker(self, server: DriverServer) -> None:
        if not server.has_joined:
            log.warning(
                "[COORDINATOR] no worker of the Dask cluster at %s has joined within %gs; still waiting for one. If "
                "none runs, start one: dask worker %s",
                self._address,
                _PATIENCE,
                self._address,
            )

    def _release(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            if client.status == "running":
                client.cancel(self._slots, force=True)
            self._slots.clear()
            if self._is_ours:
                client.close(timeout=_ANSWER_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - the run is over; its slots end by themselves
            log.debug("the Dask client could not be closed: %s", error)


def _abandon(client: Any) -> None:
    """Close a client that never connected. Left to the garbage collector, it would block there."""
    try:
        client.close(timeout=_ABANDON_TIMEOUT)
    except Exception as error:  # noqa: BLE001 - it was never connected
        log.debug("a Dask client that had not connected could not be closed: %s", error)
    client.status = "closed"


def _find_error(slot: Any) -> BaseException:
    try:
        error: BaseException = slot.exception(timeout=_ANSWER_TIMEOUT)
    except Exception as failure:  # noqa: BLE001 - the slot's error is unavailable
        return failure
    return error


def _build_hint(error: BaseException) -> str:
    if not isinstance(error, (ImportError, AttributeError)):
        return ""
    return (
        f"; install agentos {__version__} with its extra 'dask' for the Python that the cluster's workers run on, "
        f"which should be {sys.version_info.major}.{sys.version_info.minor} as here"
    )


def _is_private(scheduler: str) -> bool:
    """True if the connection to the scheduler cannot be read by others."""
    parts = urlsplit(scheduler)
    if parts.scheme in ("inproc", "tls", "wss") or parts.hostname in (None, "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(parts.hostname)).is_loopback
    except ValueError:
        return False  # a host name


def _find_own_address(scheduler: str) -> str:
    """Return the address of this machine from which it reaches the scheduler."""
    parts = urlsplit(scheduler)
    if parts.scheme == "inproc" or parts.hostname is None:
        return "127.0.0.1"
    family, kind, protocol, _, address = socket.getaddrinfo(parts.hostname, parts.port or 0, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # a UDP connect sends nothing
        return str(probe.getsockname()[0])
