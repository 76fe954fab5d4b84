"""The driver's end of a link, talked to over real sockets by somebody who says just what the test wants."""

from __future__ import annotations

import contextlib
import math
import pickle
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from agentos.runs.cluster.driver.driver_server import DriverServer
from agentos.runs.cluster.driver.remote_attempt import (
    AttemptData,
    AttemptLost,
    AttemptReported,
    KillDelivered,
    NotAssigned,
    RemoteAttempt,
)
from agentos.runs.cluster.driver.worker_process import WorkerProcess, WorkRequest
from agentos.runs.cluster.wire.certificate import build_client_context, create_identity
from agentos.runs.cluster.wire.messages import (
    MAX_FRAME,
    AttemptStatus,
    Channel,
    Frame,
    FrameKind,
    FrameReader,
    Hello,
    beat_ack_body,
    beat_body,
    data_ack_body,
    data_body,
    hello_body,
    kill_body,
    pack_frame,
    read_assign,
    read_beat_ack,
    welcome_body,
)
from agentos.runs.cluster.worker.client import DriverEndpoint, DriverUnreachable, WorkerClient

WAIT = 20.0
TTL = 600.0  # for seats that do not beat, on a machine that may stand still for a while
IDENTITY = create_identity()


class Exploding:
    """Whoever unpickles it has trusted too early."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


class Open:
    """A hub that listens, and what it told."""

    def __init__(self, ttl: float, **options: Any) -> None:
        self.late: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self.closed = threading.Event()
        self.hub = DriverServer(
            IDENTITY,
            b"the job",
            ttl=ttl,
            on_late=lambda token, body: self.late.put((token, body)),
            on_closed=self.closed.set,
            **options,
        )
        self.address = self.hub.open("127.0.0.1")
        self.seats: list[Seat] = []

    def seat(self, link: str = "link", **options: Any) -> Seat:
        self.seats.append(Seat(self.address, self.hub.password, link, **options))
        return self.seats[-1]

    def ask_of(self, seat: Seat, number: int) -> WorkRequest:
        seat.send(FrameKind.ASK, number)
        ask = self.hub.next_request()
        assert ask is not None
        return ask

    def end(self) -> None:
        self.hub.close()
        for seat in self.seats:
            seat.close()
        assert self.closed.wait(WAIT)


class Seat:
    """A worker's end, by hand."""

    def __init__(
        self,
        address: tuple[str, int],
        password: bytes,
        link: str,
        *,
        asks: tuple[int, ...] = (),
        in_hand: tuple[int, ...] = (),
        greeting: bytes | None = None,
    ) -> None:
        raw = socket.create_connection(address, timeout=WAIT)
        self._socket = build_client_context(IDENTITY.certificate).wrap_socket(raw)
        self._frames = FrameReader()
        self._came: list[Frame] = []
        self.send(FrameKind.HELLO, 0, greeting or hello_body(password, Hello(link, "node-3:77", asks, in_hand)))

    def send(self, kind: FrameKind, number: int = 0, body: bytes = b"") -> None:
        self._socket.sendall(pack_frame(kind, number, body))

    def next(self) -> Frame | None:
        """The next frame; None: the hub has closed the connection."""
        while not self._came:
            try:
                data = self._socket.recv(65_536)
            except (ssl.SSLError, ConnectionError):
                data = b""
            if not data:
                return None
            self._came += self._frames.feed(data)
        return self._came.pop(0)

    def until(self, kind: FrameKind) -> Frame:
        while (frame := self.next()) is not None:
            if frame.kind is kind:
                return frame
        raise AssertionError(f"no {kind.name} came")

    def close(self) -> None:
        """Leave so that all that was sent arrives: a socket that is closed with answers unread cuts the way of both."""
        with self._socket, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(65_536):
                pass


@pytest.fixture
def opened() -> Iterator[Open]:
    made = Open(ttl=TTL)
    yield made
    made.end()


def errand(token: int = 11) -> RemoteAttempt:
    return RemoteAttempt(token, b"the assignment", lambda: True)


def test_who_does_not_know_the_password_is_told_nothing_and_nothing_of_his_is_unpickled(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Seat(opened.address, b"x" * 32, "link")
    stranger.send(FrameKind.REPORT, 1, pickle.dumps(Exploding()))

    assert stranger.next() is None
    assert "wrong password" in caplog.text
    stranger.close()


def test_who_speaks_another_version_is_told_what_to_do(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("agentos.runs.cluster.wire.messages.FORMAT", 99)
        greeting = hello_body(opened.hub.password, Hello("link", "node-3:77"))
    seat = opened.seat(greeting=greeting)

    assert b"install the same version" in seat.until(FrameKind.REFUSED).body
    assert seat.next() is None


def test_that_a_worker_speaks_another_version_is_said_once_however_often_it_comes(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("node-3:77", "node-4:12", "node-3:77"):
        with monkeypatch.context() as patched:
            patched.setattr("agentos.runs.cluster.wire.messages.FORMAT", 99)
            greeting = hello_body(opened.hub.password, Hello("link", name))
        opened.seat(greeting=greeting).until(FrameKind.REFUSED)

    said = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
    assert [text.partition(" speaks ")[0] for text in said] == [
        "[COORDINATOR] a worker was refused: worker node-3:77",
        "[COORDINATOR] a worker was refused: worker node-4:12",
    ]


def test_who_is_welcome_is_told_the_job(opened: Open) -> None:
    assert opened.seat().until(FrameKind.WELCOME).body == welcome_body(math.inf, b"the job")


def test_a_worker_with_very_many_attempts_in_hand_is_let_in_too(opened: Open) -> None:
    seat = opened.seat(in_hand=tuple(range(10**9, 10**9 + 10_000)))

    assert seat.until(FrameKind.WELCOME).body == welcome_body(math.inf, b"the job")


def test_an_attempt_goes_to_the_seat_that_asked_and_its_report_is_confirmed(opened: Open) -> None:
    seat, trip = opened.seat(), errand()
    opened.hub.assign(opened.ask_of(seat, 4), trip)

    came = seat.until(FrameKind.ASSIGN)
    seat.send(FrameKind.REPORT, 11, b"done")

    assert (came.number, read_assign(came.body)) == (11, (4, b"the assignment"))
    assert seat.until(FrameKind.REPORT_ACK).number == 11
    assert trip.events.get(timeout=WAIT) == AttemptReported(b"done")


def test_a_report_that_is_sent_twice_counts_once(opened: Open) -> None:
    seat, trip = opened.seat(), errand()
    opened.hub.assign(opened.ask_of(seat, 4), trip)
    seat.until(FrameKind.ASSIGN)

    for _ in range(2):
        seat.send(FrameKind.REPORT, 11, b"done")
        assert seat.until(FrameKind.REPORT_ACK).number == 11

    assert trip.events.get(timeout=WAIT) == AttemptReported(b"done")
    assert trip.events.empty()


def test_what_is_said_again_on_a_new_connection_is_heard_once(opened: Open) -> None:
    seat, trip = opened.seat(), errand()
    opened.hub.assign(opened.ask_of(seat, 4), trip)
    seat.send(FrameKind.DATA, 11, data_body(1, Channel.STDOUT, b"one"))
    again = opened.seat(in_hand=(11,))
    for number, data in ((1, b"one"), (2, b"two")):
        again.send(FrameKind.DATA, 11, data_body(number, Channel.STDOUT, data))
    again.send(FrameKind.REPORT, 11, b"done")

    events = [trip.events.get(timeout=WAIT) for _ in range(3)]

    assert events == [
        AttemptData(1, Channel.STDOUT, b"one"),
        AttemptData(2, Channel.STDOUT, b"two"),
        AttemptReported(b"done"),
    ]


def test_what_was_taken_while_the_connection_was_broken_is_confirmed_on_the_next(opened: Open) -> None:
    """Else an attempt that may not say more before that waits for ever."""
    seat, trip = opened.seat(), errand()
    opened.hub.assign(opened.ask_of(seat, 4), trip)
    for number in (1, 2):
        seat.send(FrameKind.DATA, 11, data_body(number, Channel.STDOUT, b"much"))
        assert isinstance(trip.events.get(timeout=WAIT), AttemptData)
    opened.hub._calls.call(opened.hub._cut_off, opened.hub._attempts[11][1])
    opened.hub.acknowledge(trip, 2)

    again = opened.seat(in_hand=(11,))

    assert again.until(FrameKind.DATA_ACK) == Frame(FrameKind.DATA_ACK, 11, data_ack_body(2))
    again.send(FrameKind.REPORT, 11, b"")


def test_an_attempt_that_was_lost_on_its_way_is_sent_again_to_the_same_ask(opened: Open) -> None:
    seat, trip = opened.seat(), errand()
    opened.hub.assign(opened.ask_of(seat, 4), trip)
    seat.until(FrameKind.ASSIGN)

    again = opened.seat(asks=(4,))

    assert read_assign(again.until(FrameKind.ASSIGN).body) == (4, b"the assignment")
    assert trip.events.empty()
    again.send(FrameKind.REPORT, 11, b"")


def test_an_attempt_that_the_worker_neither_has_nor_awaits_is_lost_at_once(opened: Open) -> None:
    seat, trip = opened.seat(), errand()
    opened.hub.assign(opened.ask_of(seat, 4), trip)
    seat.until(FrameKind.ASSIGN)

    opened.seat(asks=(5,))

    assert isinstance(trip.events.get(timeout=WAIT), AttemptLost)


def test_an_ask_whose_connection_broke_takes_nothing(opened: Open) -> None:
    seat, trip = opened.seat(), errand()
    ask = opened.ask_of(seat, 4)
    opened.seat().until(FrameKind.WELCOME)  # the same link, which does not ask any more

    opened.hub.assign(ask, trip)

    assert trip.events.get(timeout=WAIT) == NotAssigned()


def test_an_attempt_that_is_to_end_and_was_lost_on_its_way_is_sent_again_with_that(opened: Open) -> None:
    seat, trip = opened.seat(), errand()
    opened.hub.assign(opened.ask_of(seat, 4), trip)
    seat.until(FrameKind.ASSIGN)
    opened.hub.kill(trip, 2.5)
    seat.until(FrameKind.KILL)

    again = opened.seat(asks=(4,))

    assert again.until(FrameKind.ASSIGN).number == 11
    assert again.until(FrameKind.KILL) == Frame(FrameKind.KILL, 11, kill_body(2.5))
    again.send(FrameKind.REPORT, 11, b"")


def test_an_attempt_that_is_to_end_before_it_was_sent_is_not_sent(opened: Open) -> None:
    seat, trip, other = opened.seat(), errand(), errand(12)
    ask = opened.ask_of(seat, 4)
    opened.hub.kill(trip, 0.0)

    opened.hub.assign(ask, trip)

    assert trip.events.get(timeout=WAIT) == NotAssigned()
    again = opened.hub.next_request()
    assert again is ask
    opened.hub.assign(again, other)
    assert seat.until(FrameKind.ASSIGN).number == 12
    seat.send(FrameKind.REPORT, 12, b"")


def test_a_link_whose_welcome_was_lost_with_its_connection_is_welcomed_again(opened: Open) -> None:
    opened.seat().until(FrameKind.WELCOME)

    assert opened.seat().until(FrameKind.WELCOME).body == welcome_body(math.inf, b"the job")


def test_an_attempt_goes_to_the_worker_with_the_most_seats_to_spare(opened: Open) -> None:
    for link, asks in (("one", (1,)), ("two", (1, 2)), ("three", (1,))):
        seat = opened.seat(link, asks=asks)
        seat.send(FrameKind.BEAT)
        seat.until(FrameKind.BEAT_ACK)  # by now it has asked

    first = opened.hub.next_request()

    assert first is not None
    assert first.worker.id == "two"


@pytest.mark.parametrize(("width", "gone"), [(1, [5]), (2, [])])
def test_a_seat_with_several_asks_is_let_go_only_when_none_of_them_has_an_item(width: int, gone: list[int]) -> None:
    opened = Open(ttl=TTL, width=width)
    seat, trip = opened.seat(), errand()
    asks = [opened.ask_of(seat, number) for number in (4, 5)]
    opened.hub.assign(asks[0], trip)
    opened.hub.return_request(asks[1])
    assert seat.until(FrameKind.ASSIGN).number == 11

    let_go_with_an_item = let_go_later(opened, seat)
    seat.send(FrameKind.REPORT, 11, b"")
    seat.until(FrameKind.REPORT_ACK)
    seat.send(FrameKind.ASK, 6)
    let_go_at_last = let_go_later(opened, seat)

    assert let_go_with_an_item == gone
    assert sorted(let_go_with_an_item + let_go_at_last) == [5, 6]
    opened.end()


def let_go_later(opened: Open, seat: Seat) -> list[int]:
    """The asks that are told to leave when none has been used for very long."""

    def age() -> None:
        for asks in opened.hub._requests._free.values():
            for ask in asks:
                ask.requested_at -= 1_000
        opened.hub._release_unused()

    seat.send(FrameKind.BEAT)
    seat.until(FrameKind.BEAT_ACK)  # all that it asked for is known
    opened.hub._calls.call(age)
    seat.send(FrameKind.BEAT)
    left = []
    while (frame := seat.next()) != Frame(FrameKind.BEAT_ACK, 0, beat_ack_body(math.inf, ())):
        assert frame is not None
        left.append(frame.number)
    return left


def test_a_beat_is_answered_with_what_is_to_become_of_each_attempt(opened: Open) -> None:
    seat = opened.seat()
    trips = [errand(1), errand(2), RemoteAttempt(3, b"", lambda: False)]
    for number, trip in enumerate(trips):
        opened.hub.assign(opened.ask_of(seat, number), trip)
    opened.hub.kill(trips[1], 2.5)

    seat.until(FrameKind.KILL)
    seat.send(FrameKind.BEAT, 9, beat_body([1, 2, 3, 99]))
    before = seat.until(FrameKind.BEAT_ACK)
    opened.hub.drain()
    seat.until(FrameKind.DRAIN)
    seat.send(FrameKind.BEAT, 10, beat_body([1]))

    assert before.number == 9
    assert read_beat_ack(before.body)[1] == [
        AttemptStatus.GO,
        AttemptStatus.KILL,
        AttemptStatus.LOST,
        AttemptStatus.KILL,
    ]
    assert read_beat_ack(seat.until(FrameKind.BEAT_ACK).body)[1] == [AttemptStatus.DRAIN]
    for number in (1, 2, 3):
        seat.send(FrameKind.REPORT, number, b"")


def test_that_a_worker_knows_of_the_end_of_its_attempt_is_told_once(opened: Open) -> None:
    seat, trip = opened.seat(), errand()
    opened.hub.assign(opened.ask_of(seat, 4), trip)
    seat.until(FrameKind.ASSIGN)
    opened.hub.kill(trip, 2.5)
    seat.until(FrameKind.KILL)
    before = trip.kill_unconfirmed

    for number in (1, 2):
        seat.send(FrameKind.BEAT, number, beat_body([11]))
        seat.until(FrameKind.BEAT_ACK)
    after = trip.kill_unconfirmed
    seat.send(FrameKind.REPORT, 11, b"done")

    assert (before, after) == (True, False)
    assert [trip.events.get(timeout=WAIT) for _ in range(2)] == [KillDelivered(), AttemptReported(b"done")]


def test_while_it_holds_no_seat_is_to_be_had(opened: Open) -> None:
    seat = opened.seat(asks=(4,))
    opened.hub.pause(True)
    seat.send(FrameKind.BEAT)
    seat.until(FrameKind.BEAT_ACK)  # by now it has asked
    held = opened.hub.try_take_request()
    opened.hub.pause(False)

    assert held is None
    assert opened.hub.next_request() is not None


def test_what_was_on_its_way_to_a_seat_when_it_began_to_hold_is_not_handed_out(opened: Open) -> None:
    seat, trip, other = opened.seat(), errand(), errand(12)
    ask = opened.ask_of(seat, 4)
    opened.hub.pause(True)
    opened.hub.assign(ask, trip)
    came = trip.events.get(timeout=WAIT)
    used = ask.is_used
    opened.hub.pause(False)

    assert came == NotAssigned()
    assert not used
    assert opened.hub.next_request() is ask
    opened.hub.assign(ask, other)
    assert seat.until(FrameKind.ASSIGN).number == 12
    seat.send(FrameKind.REPORT, 12, b"")


def test_seats_that_wait_are_sent_home_at_the_end(opened: Open) -> None:
    seat = opened.seat()
    opened.ask_of(seat, 4)

    opened.hub.close()

    assert seat.until(FrameKind.LEAVE).number == 4
    assert opened.hub.next_request() is None


def test_a_silent_link_is_lost_and_what_it_brings_later_is_late(opened: Open) -> None:
    seat, trip = opened.seat(), errand()
    opened.hub.assign(opened.ask_of(seat, 4), trip)

    def be_silent() -> None:
        opened.hub._workers["link"].last_frame_at -= 2 * TTL
        opened.hub._check_workers()

    opened.hub._calls.call(be_silent)
    lost = trip.events.get(timeout=WAIT)
    back = opened.seat(in_hand=(11,))
    killed = back.until(FrameKind.KILL).number
    back.send(FrameKind.REPORT, 11, b"at last")

    assert isinstance(lost, AttemptLost)
    assert "worker node-3:77 was lost: no contact for 600s" in lost.reason
    assert killed == 11
    assert opened.late.get(timeout=WAIT) == (11, b"at last")


@pytest.mark.parametrize(("silent_for", "lost"), [(100.9, False), (101.1, True)])
def test_a_link_is_lost_when_its_worker_has_given_up_for_certain(
    silent_for: float, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker gives up by as much before the time to live as the driver waits after it."""
    hub, member = DriverServer(IDENTITY, b"", ttl=100.0, on_late=print), WorkerProcess("link", "node-3:77")
    hub._workers["link"] = member
    member.last_frame_at, hub._checked_at = 1_000.0, 1_000.0 + silent_for
    monkeypatch.setattr(
        "agentos.runs.cluster.driver.driver_server.time", SimpleNamespace(monotonic=lambda: 1_000.0 + silent_for)
    )

    hub._check_workers()
    hub._loop.close()

    assert ("link" not in hub._workers) == lost


def test_a_driver_that_stood_still_itself_declares_nobody_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock runs on while it stands still, and what was sent meanwhile is still to be read."""
    opened = Open(ttl=600.0)
    seat, trip = opened.seat(), errand()
    opened.hub.assign(opened.ask_of(seat, 4), trip)
    seat.until(FrameKind.ASSIGN)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 10_000)
    looked = threading.Event()

    def look() -> None:
        with monkeypatch.context() as patched:
            patched.setattr("agentos.runs.cluster.driver.driver_server.time", later)
            opened.hub._check_workers()
        looked.set()

    opened.hub._calls.call(look)
    assert looked.wait(WAIT)

    assert trip.events.empty()
    seat.send(FrameKind.REPORT, 11, b"done")
    assert trip.events.get(timeout=WAIT) == AttemptReported(b"done")
    opened.end()


# -- the worker's end, without a driver -----------------------------------------------------------------------------


def unused_address() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    return host, port


def test_a_worker_that_finds_nobody_listening_gives_up_soon_and_says_what_to_do() -> None:
    link = WorkerClient(DriverEndpoint("run", *unused_address(), IDENTITY.certificate, b"x" * 32, ttl=600.0))
    fenced: queue.SimpleQueue[bool] = queue.SimpleQueue()
    link.welcome.add_done_callback(lambda _: fenced.put(link.fenced))
    link.start()

    with pytest.raises(DriverUnreachable, match="listen="):
        link.welcome.result(WAIT)
    assert fenced.get(timeout=WAIT), "a seat that comes now would join this link, and be told the same"


def test_a_worker_sends_its_password_to_nobody_but_its_driver() -> None:
    opened = Open(ttl=TTL)
    other = create_identity()
    link = WorkerClient(DriverEndpoint("run", *opened.address, other.certificate, opened.hub.password, ttl=600.0))
    link.start()
    until = time.monotonic() + WAIT
    while link._last_error == "no answer" and time.monotonic() < until:
        time.sleep(0.01)
    link._calls.call(link._on_unreachable)

    with pytest.raises(DriverUnreachable, match="certificate verify failed"):
        link.welcome.result(WAIT)
    assert not opened.hub.has_joined
    opened.end()


def test_a_post_shows_nothing_of_itself() -> None:
    assert repr(DriverEndpoint("run", "10.0.0.5", 9000, b"certificate", b"password", 10.0)) == "agentos seat"


def test_no_frame_is_larger_than_what_is_taken() -> None:
    assert FrameReader().longest == MAX_FRAME
