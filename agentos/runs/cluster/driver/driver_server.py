"""The driver's end of all links: hands attempts to the seats that ask, takes what comes back, notices who is gone.

Everything in a hub happens on its own thread, on an event loop; the other threads of the driver talk to it by calls
that return at once, and hear of it by queues. So a slow input, a busy journal or a reader that takes its time never
delays a heartbeat.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable

from ..wire.certificate import Identity
from ..wire.loop_calls import Calls
from ..wire.messages import (
    PASSWORD,
    Frame,
    Hello,
    Kind,
    Standing,
    WireError,
    heard_body,
    kill_body,
    margin_of,
    packed,
    read_beat,
    read_hello,
    read_said,
    taken_body,
    welcome_body,
)
from .listener import Listener
from .remote_attempt import Errand, Event, Lost, NotTaken, Reported, Said, ToldToEnd
from .waiting_workers import Asks
from .worker_connection import Connection
from .worker_process import Ask, Member

log = logging.getLogger("agentos")

_TO_LEAVE = 1.0  # for the last words to be sent
_TO_CLOSE = 0.01  # for sockets that nobody waits for
_LOOKS = 6  # at the links, in one time to live
_UNUSED = 5.0  # seconds for which a seat waits for an item; then its cluster may use the place for others
_LOOKS_AT_UNUSED = 5  # in that time
_TO_COME = 5.0  # for a worker on which items can begin, once it is known that on others they cannot


class Hub:
    """Listens for the links of one run.

    *welcome* is what each of them is told first. Its seats ask for *width* items at once. A link that is silent for
    *ttl* seconds (and a little) is lost, with all it had in hand. *good_for* says for how many seconds leases are good.
    While it is ``silent`` no link hears that the driver is there. Called on the hub's thread: *on_late*, with the token
    and the report of an attempt that had been lost; *on_unfit*, for each seat that gets nothing because its worker was
    set aside; *on_nobody*, with the reasons, while there is no other worker; *on_closed* at the very end.
    """

    def __init__(
        self,
        identity: Identity,
        welcome: bytes,
        *,
        ttl: float,
        width: int = 1,
        good_for: Callable[[], float] = lambda: math.inf,
        on_late: Callable[[int, bytes], object],
        on_unfit: Callable[[], object] = lambda: None,
        on_nobody: Callable[[list[str]], object] = lambda _reasons: None,
        on_closed: Callable[[], object] = lambda: None,
    ) -> None:
        self.password = secrets.token_bytes(PASSWORD)
        self.has_joined = False  # at least one worker
        self.silent = False
        self._welcome = welcome
        self._ttl = ttl
        self._width = width
        self._good_for = good_for
        self._margin = margin_of(ttl)
        self._on_late = on_late
        self._on_unfit = on_unfit
        self._on_nobody = on_nobody
        self._on_closed = on_closed
        self._loop = asyncio.new_event_loop()
        self._calls = Calls(self._loop)
        self._asks = Asks()
        self._links: dict[str, Member] = {}
        self._connections: set[Connection] = set()
        self._errands: dict[int, tuple[Errand, Member]] = {}
        self._listener = Listener(lambda: Connection(self), identity, to_close=_TO_LEAVE)
        self._over = asyncio.Event()
        self._unfit: dict[str, str] = {}  # workers that were set aside, and why
        self._refusals: set[str] = set()  # that were said
        self._may_come_back = False  # one that was lost, and on which items could begin
        self._nobody_since = math.inf
        self._draining = self._closing = False
        self._looked_at = 0.0

    # -- for the driver's threads -------------------------------------------------------------------------------

    def open(self, host: str, port: int = 0) -> tuple[str, int]:
        """Listen there; returns the address. Raises OSError."""
        opened: queue.SimpleQueue[tuple[str, int] | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(host, port, opened.put), name="agentos-hub", daemon=True).start()
        address = opened.get()
        if isinstance(address, BaseException):
            raise address
        return address

    def ask_now(self) -> Ask | None:
        """A seat that wants an item; None if there is none at the moment."""
        return self._asks.take_now()

    def next_ask(self) -> Ask | None:
        """Wait for a seat that wants an item. None: there will be no more."""
        return self._asks.take()

    def waiting(self, seconds: float = 0.0) -> int:
        """How many threads have waited for a seat for so long."""
        return self._asks.waiting(seconds)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is out."""
        return not self._errands

    def hand_out(self, ask: Ask, errand: Errand) -> None:
        """Give the seat that asked this attempt, and no other."""
        ask.used = True
        if not self._calls.make(self._hand_out, ask, errand):
            errand.events.put(NotTaken())

    def put_back(self, ask: Ask) -> None:
        """It was not used: somebody else may have it."""
        self._asks.put(ask)

    def dismiss(self, ask: Ask) -> None:
        """There is nothing for the seat that asked, and there will not be."""
        self._calls.make(self._dismiss, ask)

    def set_aside(self, member: Member, why: str) -> bool:
        """Items cannot begin on that worker: it gets none, from this moment on. False: that was known."""
        is_news = self._asks.set_aside(member)
        if is_news:
            self._calls.make(self._set_aside, member, why)
        return is_news

    def kill(self, errand: Errand, after: float) -> None:
        """Ask the attempt to end within so many seconds."""
        self._calls.make(self._kill, errand, after)

    def taken(self, errand: Errand, number: int) -> None:
        """What the attempt said was taken, up to this number: it may say more."""
        self._calls.make(self._taken, errand, number)

    def hold(self, on: bool) -> None:
        """Give no seat an attempt for now, nor anybody a seat, or (False) go on. Seats may ask all the same."""
        self._asks.hold(on)

    def drain(self) -> None:
        """The run stops: every attempt should finish soon, and none begins."""
        self._calls.make(self._drain)

    def close(self) -> None:
        """No seat gets anything any more. The hub itself stays until the last attempt has come back, or is lost."""
        self._calls.make(self._close)

    # -- the hub's own thread -----------------------------------------------------------------------------------

    def _serve(self, host: str, port: int, opened: Callable[[tuple[str, int] | BaseException], None]) -> None:
        loop = self._loop
        try:
            address = loop.run_until_complete(self._listener.open(host, port))
        except BaseException as error:  # noqa: BLE001 - raised by whoever opened it
            self._calls.close()
            opened(error)
            return
        opened(address)
        self._looked_at = time.monotonic()
        loop.call_later(self._ttl / _LOOKS, self._look_at_links)
        loop.call_later(_UNUSED / _LOOKS_AT_UNUSED, self._look_at_unused)
        try:
            loop.run_until_complete(self._stay_open())
        finally:
            self._calls.close()
            self._on_closed()

    async def _stay_open(self) -> None:
        """Until it is over; then cut off whoever is still there, or just shaking hands."""
        await self._over.wait()
        await asyncio.sleep(0)  # who was let in just now begins to
        for connection in list(self._connections):
            connection.abort()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(_TO_CLOSE)

    def _hand_out(self, ask: Ask, errand: Errand) -> None:
        link = ask.link
        if errand.killed is not None or self._asks.held or link.unfit:
            ask.used = False
            self._asks.put(ask)  # nobody wants it any more, or not now, but another one may come
            errand.events.put(NotTaken())
            return
        if ask.void or link.asks.pop(ask.number, None) is None:
            errand.events.put(NotTaken())
            return
        errand.ask = ask
        link.errands[errand.token] = errand
        self._errands[errand.token] = errand, link
        link.send(errand.frame(ask.number))

    def _set_aside(self, link: Member, why: str) -> None:
        self._unfit[link.name] = why
        for number in link.asks:
            self._ask_in_vain(link, number)

    def _ask_in_vain(self, link: Member, number: int) -> None:
        """Its seat stays there without work: if it left, the cluster would have the next one there."""
        if number not in link.in_vain:
            link.in_vain.add(number)
            if (len(link.in_vain) - 1) % self._width == 0:
                self._on_unfit()

    def _dismiss(self, ask: Ask) -> None:
        if not ask.void and ask.link.asks.pop(ask.number, None) is not None:
            ask.link.send(packed(Kind.LEAVE, ask.number))

    def _kill(self, errand: Errand, after: float) -> None:
        errand.killed = after
        known = self._errands.get(errand.token)
        if known is not None:
            known[1].send(packed(Kind.KILL, errand.token, kill_body(after)))

    def _taken(self, errand: Errand, number: int) -> None:
        errand.taken = number
        known = self._errands.get(errand.token)
        if known is not None:
            known[1].send(packed(Kind.TAKEN, errand.token, taken_body(number)))

    def _drain(self) -> None:
        self._draining = True
        for link in self._links.values():
            link.send(packed(Kind.DRAIN))
        self._let_go()

    def _let_go(self) -> None:
        """Send all seats home that have nothing to do, and whoever waits for one."""
        self._asks.close()
        for link in self._links.values():
            for ask in list(link.asks.values()):
                self._dismiss(ask)

    # -- links --------------------------------------------------------------------------------------------------

    def joined(self, connection: Connection) -> None:
        """Somebody connected; who it is, is not known yet."""
        self._connections.add(connection)

    def knows(self, password: bytes) -> bool:
        """Whether that is the password of the run."""
        return hmac.compare_digest(password, self.password)

    def greeted(self, connection: Connection, frame: Frame) -> Member | None:
        """The first frame of a connection. None: it is none of ours."""
        if frame.kind is not Kind.HELLO or not self.knows(frame.body[:PASSWORD]):
            log.warning("[COORDINATOR] somebody who does not know this run tried to join it as a worker")
            return None
        try:
            hello = read_hello(frame.body)
        except WireError as error:
            if str(error) not in self._refusals:  # it may come again and again
                self._refusals.add(str(error))
                log.warning("[COORDINATOR] a worker was refused: %s", error)
            connection.send(packed(Kind.REFUSED, 0, str(error).encode()))
            return None
        if self.silent:
            return None
        link = self._links.get(hello.link)
        if link is None:
            link = self._links[hello.link] = Member(hello.link, hello.name, unfit=hello.name in self._unfit)
        elif link.connection is not None:
            link.connection.abort()  # it broke, and we have not noticed
            self._cut_off(link)
        self.has_joined = True
        link.connection = connection
        link.heard_at = time.monotonic()
        # Again, for the first may not have arrived.
        connection.send(packed(Kind.WELCOME, 0, welcome_body(self._good_for(), self._welcome)))
        if self._draining:
            connection.send(packed(Kind.DRAIN))
        self._go_on(link, hello)
        return link

    def _go_on(self, link: Member, hello: Hello) -> None:
        """What was under way when an earlier connection broke, or when the link was taken for lost."""
        for token in hello.in_hand:
            if token not in link.errands:
                link.send(packed(Kind.KILL, token, kill_body(0.0)))
        answered = {}
        for errand in list(link.errands.values()):
            if errand.token in hello.in_hand:
                if errand.taken:  # what told of that may not have arrived, and output would wait for it for ever
                    link.send(packed(Kind.TAKEN, errand.token, taken_body(errand.taken)))
                self._kill_again(link, errand)
            elif errand.ask is not None and errand.ask.number in hello.asks:
                answered[errand.ask.number] = errand
            else:
                self._end(errand.token, Lost("its worker does not know of it any more"))
        for number in hello.asks:
            if number in answered:
                link.send(answered[number].frame(number))  # the first time it was lost with the connection
                self._kill_again(link, answered[number])
            else:
                self._asked(link, number)

    @staticmethod
    def _kill_again(link: Member, errand: Errand) -> None:
        if errand.killed is not None:
            link.send(packed(Kind.KILL, errand.token, kill_body(errand.killed)))

    def heard(self, link: Member, frame: Frame) -> None:
        """A frame of a link that has been welcomed. Raises ``WireError``."""
        kind, number, body = frame
        if kind is Kind.REPORT:
            link.send(packed(Kind.KEPT, number))
            if number in link.errands:
                self._end(number, Reported(body))
            else:
                self._on_late(number, body)
        elif kind is Kind.ASK:
            self._asked(link, number)
        elif kind is Kind.SAID:
            self._said(link, number, Said(*read_said(body)))
        elif kind is Kind.BEAT:
            standings = [self._standing_of(link, token) for token in read_beat(body)]
            if not self.silent:
                link.send_now(packed(Kind.HEARD, number, heard_body(self._good_for(), standings)))
        else:
            raise WireError(f"{kind.name} is not for a worker to say")

    @staticmethod
    def _said(link: Member, token: int, said: Said) -> None:
        errand = link.errands.get(token)
        if errand is not None and said.number > errand.said:  # else it came before, on a connection that broke
            errand.said = said.number
            errand.events.put(said)

    def _asked(self, link: Member, number: int) -> None:
        if self._closing or self._draining:
            link.send(packed(Kind.LEAVE, number))
            return
        ask = link.asks[number] = Ask(link, number)
        self._asks.put(ask)
        if link.unfit:
            self._ask_in_vain(link, number)

    def _standing_of(self, link: Member, token: int) -> Standing:
        errand = link.errands.get(token)
        if errand is None:
            return Standing.KILL
        if errand.killed is not None:
            if not errand.told:
                errand.told = True
                errand.events.put(ToldToEnd())
            return Standing.KILL
        if not errand.held():
            return Standing.LOST
        return Standing.DRAIN if self._draining else Standing.GO

    def left(self, connection: Connection, link: Member | None) -> None:
        """A connection ended. That alone is not the end of its link."""
        self._connections.discard(connection)
        if link is not None and link.connection is connection:
            self._cut_off(link)
        if not self._listener.is_open and not self._connections:
            self._over.set()

    def _cut_off(self, link: Member) -> None:
        link.connection = None
        self._asks.withdraw(link)
        link.asks.clear()

    def _end(self, token: int, event: Event) -> None:
        errand, link = self._errands.pop(token)
        link.errands.pop(token, None)
        errand.events.put(event)
        self._look_whether_over()

    def _look_at_links(self) -> None:
        """Declare those lost that have been silent for too long."""
        now, pause = time.monotonic(), self._ttl / _LOOKS
        if now > self._looked_at + 3 * pause:
            # We ourselves stood still: what they said meanwhile has not been read yet.
            for link in self._links.values():
                link.heard_at = now
        self._looked_at = now
        for link in list(self._links.values()):
            if now > link.heard_at + self._ttl + self._margin:
                self._lose(link)
        self._look_whether_nobody_can(now)
        self._loop.call_later(pause, self._look_at_links)

    def _look_whether_nobody_can(self, now: float) -> None:
        """Say so if there have only been workers for a while on which items cannot begin."""
        if not self._unfit or self._may_come_back or not all(link.unfit for link in self._links.values()):
            self._nobody_since = math.inf
            return
        self._nobody_since = min(self._nobody_since, now)
        if not self._draining and now >= self._nobody_since + _TO_COME:
            self._on_nobody(list(self._unfit.values()))

    def _lose(self, link: Member) -> None:
        del self._links[link.id]
        self._may_come_back |= link.has_worked and not link.unfit
        if link.connection is not None:
            link.connection.close()
            self._cut_off(link)
        if link.errands:
            log.warning(
                "[COORDINATOR] worker %s has not been heard of for %gs; items that are lost with it: %d",
                link.name,
                self._ttl,
                len(link.errands),
            )
        for token in list(link.errands):
            self._end(token, Lost(f"worker {link.name} was lost: not heard of for {self._ttl:g}s"))

    def _look_at_unused(self) -> None:
        """Let seats go for which there has been nothing to do for a while."""
        for ask in self._asks.let_go(_UNUSED, self._may_go):
            self._dismiss(ask)
        self._loop.call_later(_UNUSED / _LOOKS_AT_UNUSED, self._look_at_unused)

    def _may_go(self, link: Member, asks: list[Ask]) -> bool:
        """A seat with several asks ends with the last of them; so all of its worker go, or none."""
        return self._width == 1 or (not link.errands and len(asks) == len(link.asks))

    # -- the end ------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._let_go()
        self._look_whether_over()

    def _look_whether_over(self) -> None:
        if not self._closing or self._errands or not self._listener.is_open:
            return
        self._listener.close()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            self._loop.call_later(_TO_LEAVE, self._over.set)
        else:
            self._over.set()
