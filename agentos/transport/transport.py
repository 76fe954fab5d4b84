"""Transports that lease a credential for each call: one for threads, one for asyncio."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import NeverFits, NoCredentialAvailable, NoUsableCredential, PoolClosed, WouldBlockLoop
from ..util.event_loop import running_loop
from .abandoned_streams import CollectionTimer, OpenStreams
from .call import Call
from .error_body import ErrorBody
from .httpx_compat import AsyncBaseTransport, BaseTransport, find_library
from .inner_transports import InnerTransports
from .settings import TransportSettings
from .streams import async_stream, drain_abandoned, sync_stream

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

log = logging.getLogger("agentos")

_NO_LEASE = (NeverFits, NoCredentialAvailable, NoUsableCredential, PoolClosed)
_INSTEAD = "pool.async_transport() with an asynchronous client"


def _resolve(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _call_later(seconds: float, callback: Callable[[], None]) -> TimerHandle:
    loop = running_loop()
    assert loop is not None  # noqa: S101 - for the type checker: only a loop runs coroutines and timers
    return loop.call_later(seconds, callback)


class PoolTransport(BaseTransport):
    """The transport for ``httpx2.Client(transport=pool.transport())``. Safe to use from many threads."""

    def __init__(self, settings: TransportSettings, inner: Any = None) -> None:
        self._settings = settings
        self._inner_transports = InnerTransports(inner, "HTTPTransport")
        self._abandoned: list[Any] = []
        self._open = OpenStreams(CollectionTimer())

    def handle_request(self, request: Any) -> Any:
        """Send *request* with a credential of the pool, or with several in turn."""
        call = Call(self._settings, request)
        if running_loop() is None:  # else a pause would stop the loop
            call.plan_first_call()
        while True:
            if call.pause:
                self._pause(call)
            if not call.take_now() and not self._wait_for(call):
                return call.answer
            try:
                if self._abandoned:  # so that their connections are closed before their keys are used again
                    self._close_abandoned()
                sent = call.outgoing()
                response = self._inner_transports.for_request(sent).handle_request(sent)
                if response.status_code < 400:
                    if call.on_success_response(response):
                        response.stream = sync_stream(find_library(response))(response.stream, call, self._abandoned)
                        if call.may_be_abandoned:
                            self._open.add(response.stream)
                            call.track_stream(response.stream)
                    return response
                answer = call.on_error_response(response, self._read(call, response))
            except BaseException as error:
                if not call.on_transport_error(error):
                    raise
                answer = None
            if answer is not None:
                return answer

    async def handle_async_request(self, request: Any) -> Any:
        """Raise TypeError: this transport is synchronous."""
        raise TypeError("an asynchronous client needs pool.async_transport(), not pool.transport()")

    def _read(self, call: Call, response: Any) -> ErrorBody:
        with call.error_body(response) as body:
            try:
                for piece in response.stream:
                    if not body.add(piece):
                        break
            finally:
                response.close()
        return body

    def _wait_for(self, call: Call) -> bool:
        """Wait for a lease; return False if none will come and ``call.answer`` is to be returned."""
        pool = self._settings.pool
        pool.on_wait()
        began = pool.clock.now()
        while True:
            try:
                with self._open.collecting_while_waiting():
                    grant = pool.wait(*call.wait_terms(), _INSTEAD)
                if call.on_granted(grant, began):
                    return True
            except _NO_LEASE as error:
                if not call.on_wait_failed(error, began):
                    return False

    def _pause(self, call: Call) -> None:
        if running_loop() is not None:
            call.release()
            raise WouldBlockLoop(instead=_INSTEAD)
        clock = self._settings.pool.clock
        sleeper = threading.Lock()
        sleeper.acquire()
        clock.wait(sleeper, clock.now() + call.pause)

    def _close_abandoned(self) -> None:
        for stream in drain_abandoned(self._abandoned):
            try:
                stream.close()
            except Exception:  # not the concern of the next call
                log.debug("[COORDINATOR] an abandoned response body could not be closed", exc_info=True)

    def close(self) -> None:
        """Close the connections and release unfinished responses. The pool stays open."""
        self._settings.release_open_calls()
        self._close_abandoned()
        for transport in self._inner_transports.all():
            transport.close()


class AsyncPoolTransport(AsyncBaseTransport):
    """The transport for ``httpx2.AsyncClient(transport=pool.async_transport())``, in one event loop."""

    def __init__(self, settings: TransportSettings, inner: Any = None) -> None:
        self._settings = settings
        self._inner_transports = InnerTransports(inner, "AsyncHTTPTransport")
        self._abandoned: list[Any] = []
        self._open = OpenStreams(_call_later)

    async def handle_async_request(self, request: Any) -> Any:
        """Send *request* with a credential of the pool, or with several in turn."""
        call = Call(self._settings, request)
        call.plan_first_call()
        while True:
            if call.pause:
                await self._pause(call)
            if not call.take_now() and not await self._wait_for(call):
                return call.answer
            try:
                if self._abandoned:  # so that their connections are closed before their keys are used again
                    await self._close_abandoned()
                sent = call.outgoing()
                response = await self._inner_transports.for_request(sent).handle_async_request(sent)
                if response.status_code < 400:
                    if call.on_success_response(response):
                        response.stream = async_stream(find_library(response))(response.stream, call, self._abandoned)
                        if call.may_be_abandoned:
                            self._open.add(response.stream)
                            call.track_stream(response.stream)
                    return response
                answer = call.on_error_response(response, await self._read(call, response))
            except BaseException as error:
                if not call.on_transport_error(error):
                    raise
                answer = None
            if answer is not None:
                return answer

    def handle_request(self, request: Any) -> Any:
        """Raise TypeError: this transport is asynchronous."""
        raise TypeError("a client that is not asynchronous needs pool.transport(), not pool.async_transport()")

    async def _read(self, call: Call, response: Any) -> ErrorBody:
        with call.error_body(response) as body:
            try:
                async for piece in response.stream:
                    if not body.add(piece):
                        break
            finally:
                await response.aclose()
        return body

    async def _wait_for(self, call: Call) -> bool:
        """Wait for a lease; return False if none will come and ``call.answer`` is to be returned."""
        pool = self._settings.pool
        pool.on_wait()
        began = pool.clock.now()
        while True:
            try:
                with self._open.collecting_while_waiting():
                    grant = await pool.wait_async(*call.wait_terms())
                if call.on_granted(grant, began):
                    return True
            except _NO_LEASE as error:
                if not call.on_wait_failed(error, began):
                    return False

    async def _pause(self, call: Call) -> None:
        loop = running_loop()
        assert loop is not None  # noqa: S101 - for the type checker: only a loop runs coroutines
        clock = self._settings.pool.clock
        until = clock.now() + call.pause
        while clock.now() < until:  # a timer fires after a day at the latest
            timer_done = loop.create_future()
            alarm = clock.call_at(loop, until, partial(_resolve, timer_done))
            try:
                await timer_done
            finally:
                alarm.cancel()

    async def _close_abandoned(self) -> None:
        for stream in drain_abandoned(self._abandoned):
            try:
                await stream.aclose()
            except Exception:  # such as that the loop has ended
                log.debug("[COORDINATOR] an abandoned response body could not be closed", exc_info=True)

    async def aclose(self) -> None:
        """Close the connections and release unfinished responses. The pool stays open."""
        self._settings.release_open_calls()
        await self._close_abandoned()
        for transport in self._inner_transports.all():
            await transport.aclose()
