"""Run a simulator: in a thread of this process, or in a separate process. Both have the same interface."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .plan import ProviderPlan
from .server import Service, listen
from .statistics import Statistics

_STOP_WITHIN = 5.0


def find_base_urls(url: str) -> dict[str, str]:
    """Return the base URL for each SDK of a simulator at *url*."""
    return {"openai": f"{url}/v1", "anthropic": url, "gemini": url, "mistral": f"{url}/mistral"}


class Running:
    """A simulated provider at an address: a context manager that serves until it is left.

    ``base_url`` is for OpenAI clients; ``anthropic_url``, ``gemini_url`` and ``mistral_url`` are for the others,
    ``url`` is the root; ``keys`` are the secrets of the plan, in order. After the end ``statistics`` returns the last
    ones.
    """

    def __init__(self, plan: ProviderPlan) -> None:
        self.plan = plan
        self._url: str | None = None
        self._last: Statistics | None = None

    @property
    def url(self) -> str:
        """Return the root of the server. Raises RuntimeError before it has started."""
        if self._url is None:
            raise RuntimeError("the simulator is not running: use it in a with statement")
        return self._url

    @property
    def base_url(self) -> str:
        """Return the base URL for OpenAI clients."""
        return find_base_urls(self.url)["openai"]

    @property
    def anthropic_url(self) -> str:
        """Return the base URL for Anthropic clients."""
        return self.url

    @property
    def gemini_url(self) -> str:
        """Return the base URL for Gemini: ``genai.Client(http_options=HttpOptions(base_url=provider.gemini_url))``."""
        return self.url

    @property
    def mistral_url(self) -> str:
        """Return the server URL for Mistral clients: answers are OpenAI's, but streams always state their usage."""
        return find_base_urls(self.url)["mistral"]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the secrets of the plan's keys, in order."""
        return self.plan.secrets

    def statistics(self) -> Statistics:
        """Return the provider's statistics; after the end, the last ones."""
        if self._last is not None:
            return self._last
        return Statistics.from_dict(self._request("GET", "/simulator/statistics"))

    def reset(self) -> None:
        """Start over: every limit full, nothing counted."""
        self._request("POST", "/simulator/reset")

    def wait_in_flight(self, number: int, timeout: float = 30.0) -> None:
        """Return once exactly *number* calls are in flight. Raises TimeoutError."""
        self._request("GET", f"/simulator/wait?in_flight={number}", timeout)

    def wait_idle(self, timeout: float = 30.0) -> None:
        """Return once no call is in flight. Raises TimeoutError."""
        self.wait_in_flight(0, timeout)

    def start(self) -> None:
        """Start serving."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop serving; connected clients are cut off. Safe to call twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _keep_statistics(self) -> None:
        try:
            self._last = self.statistics()
        except (OSError, ValueError, http.client.HTTPException):
            pass  # it has ended by itself

    def _request(self, method: str, path: str, timeout: float = 30.0) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=timeout)
        try:
            connection.request(method, path, headers={"connection": "close"})
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()


class Simulator(Running):
    """The plan's provider on 127.0.0.1, served by a thread of this process.

    ``with Simulator(equal_keys(8, rpm=500)) as provider: OpenAI(base_url=provider.base_url, api_key=provider.keys[0])``

    *clock* is for tests that control time: it applies to the limits; latencies are real.
    """

    def __init__(
        self,
        plan: ProviderPlan,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(plan)
        self._host = host
        self._port = port
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Start serving. Raises ValueError for a host other than this machine, OSError for a port in use."""
        if self._thread is not None:
            raise RuntimeError("the simulator is running already")
        ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._last = None
        self._thread = threading.Thread(target=self._run, args=(ready,), name="agentos-simulator", daemon=True)
        self._thread.start()
        try:
            self._url = ready.result()
        except BaseException:
            self._thread.join()
            self._thread = None
            raise

    def close(self) -> None:
        """Stop serving; connected clients are cut off. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._keep_statistics()
            self._stop()
            thread.join()

    def _run(self, ready: concurrent.futures.Future[str]) -> None:
        asyncio.run(self._serve(ready))

    async def _serve(self, ready: concurrent.futures.Future[str]) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._stop = functools.partial(loop.call_soon_threadsafe, ended.set)
        try:
            listening = await listen(Service(self.plan, clock=self._clock), host=self._host, port=self._port)
        except BaseException as error:  # noqa: BLE001 - raised again for the caller
            ready.set_exception(error)
            return
        ready.set_result(listening.url)
        await ended.wait()
        await listening.close()


class _Child(Running):
    """The same in a separate process, which ends with this one: it serves until its standard input closes."""

    def __init__(self, plan: ProviderPlan) -> None:
        super().__init__(plan)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start serving. Raises RuntimeError if the process ends before it is ready."""
        if self._process is not None:
            raise RuntimeError("the simulator is running already")
        self._last = None
        # The child must import the same package as this process.
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.Popen(
            [sys.executable, "-m", "agentos.simulator", "--plan", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._process = process
        try:
            self._write_plan(process)
            self._url = _read_address(process)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._url is not None and process.poll() is None:
            self._keep_statistics()
        try:
            if process.stdin is not None:
                process.stdin.close()
        except OSError:
            pass  # it has ended by itself
        try:
            process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def _write_plan(self, process: subprocess.Popen[bytes]) -> None:
        # By standard input and not by a file or an argument, where others could read the secrets.
        if process.stdin is not None:
            try:
                process.stdin.write(json.dumps(self.plan.to_dict()).encode() + b"\n")
                process.stdin.flush()
            except OSError:
                pass  # it has ended by itself, as its output shows


def _read_address(process: subprocess.Popen[bytes]) -> str:
    line = process.stdout.readline() if process.stdout is not None else b""
    if not line:
        raise RuntimeError(f"the simulator ended with code {process.wait(_STOP_WITHIN)} before it was ready")
    return str(json.loads(line)["url"])


def in_process(plan: ProviderPlan) -> Running:
    """Return the plan's provider in a separate process, so that it does not share this one's core.

    ``with in_process(equal_keys(8, rpm=500)) as provider: ...``; used like :class:`Simulator`.
    """
    return _Child(plan)
