"""Number and time of the worker slots placed on a Dask cluster, with a fake client."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from agentos import Dask
from agentos.runs.cluster.worker.client import DriverEndpoint
from agentos.runs.engines.dask import DaskPlacement


class Client:
    """A cluster of so many threads, whose seats are what the test says."""

    def __init__(self, threads: int, address: str = "tcp://127.0.0.1:8786") -> None:
        self.asynchronous = False
        self.status = "running"
        self.threads = threads
        self.scheduler = SimpleNamespace(address=address)
        self.seats: list[Any] = []

    def nthreads(self, **_: object) -> dict[str, int]:
        return {"a worker": self.threads}

    def submit(self, *_: object, **__: object) -> Any:
        self.seats.append(SimpleNamespace(status="pending"))
        return self.seats[-1]

    @property
    def placed(self) -> int:
        return sum(seat.status == "pending" for seat in self.seats)


class Hub:
    """So many threads wait for a seat."""

    has_joined = True

    def __init__(self) -> None:
        self.count = 0

    def count_waiting(self, _seconds: float = 0.0) -> int:
        return self.count


def opened(client: Client, *, workers: int, is_async: bool = False, ship_secrets: bool = False) -> tuple[Any, int]:
    """A seating, and how many items each of its seats shall run at once."""
    run: Any = SimpleNamespace(
        worker=SimpleNamespace(is_async=is_async, is_command=False),
        state=SimpleNamespace(
            options=SimpleNamespace(ship_secrets=ship_secrets), pool=object(), closing=False, masked=str
        ),
        shutdown=SimpleNamespace(),
    )
    seating = DaskPlacement(run, Dask(client, listen="127.0.0.1:0"))
    seating._endpoint = DriverEndpoint("a run", "127.0.0.1", 1, b"", b"", ttl=5.0)
    return seating, seating.open(workers)[2]


def look(seating: Any, hub: Hub) -> None:
    seating._count_at = 0.0
    seating._check_slots(hub)


def test_there_is_a_seat_for_each_worker_though_the_cluster_has_fewer_threads() -> None:
    client = Client(threads=2)
    seating, width = opened(client, workers=5)

    look(seating, Hub())

    assert (client.placed, width) == (5, 1)


def test_coroutines_share_the_threads_that_there_are() -> None:
    client = Client(threads=2)
    seating, width = opened(client, workers=5, is_async=True)

    look(seating, Hub())

    assert (client.placed, width) == (2, 3)


@pytest.mark.parametrize("at_first", [0, 1])
def test_threads_that_join_later_have_seats_for_coroutines_too(at_first: int) -> None:
    client = Client(threads=at_first)
    seating, _ = opened(client, workers=8, is_async=True)
    look(seating, Hub())
    before = client.placed

    client.threads = 4
    look(seating, Hub())

    assert (before, client.placed) == (1, 4)


def test_a_seat_that_was_let_go_is_placed_again_only_when_somebody_waits_for_one() -> None:
    client, hub = Client(threads=4), Hub()
    seating, _ = opened(client, workers=4)
    look(seating, hub)
    for seat in client.seats[:3]:
        seat.status = "finished"

    look(seating, hub)
    without_need = client.placed
    hub.count = 2
    look(seating, hub)
    with_need = client.placed
    hub.count = 4
    look(seating, hub)

    assert (without_need, with_need, client.placed) == (1, 3, 4)


def test_a_worker_that_was_woken_for_work_has_a_seat_placed_at_once() -> None:
    client, hub = Client(threads=4), Hub()
    seating, _ = opened(client, workers=1)
    look(seating, hub)
    client.seats[0].status = "finished"
    look(seating, hub)

    seating.request_slots()
    look(seating, hub)

    assert seating._wake.is_set()
    assert client.placed == 1


def test_why_seats_fail_is_said_once_for_each_worker(caplog: pytest.LogCaptureFixture) -> None:
    client, hub = Client(threads=1), Hub()
    seating, _ = opened(client, workers=1)

    for node in ("node-3", "node-3", "node-4", "node-3"):
        seating._place_again_at = 0.0
        look(seating, hub)
        client.seats[-1].status = "error"
        client.seats[-1].exception = lambda node=node, **_: ImportError(f"{node} has Python 3.9")
        look(seating, hub)

    said = [
        record.getMessage() for record in caplog.records if "a worker slot on the Dask cluster" in record.getMessage()
    ]
    assert [text.rpartition("failed: ")[2] for text in said] == [
        "ImportError: node-3 has Python 3.9",
        "ImportError: node-4 has Python 3.9",
    ]


def test_if_no_worker_comes_it_says_how_to_start_one(caplog: pytest.LogCaptureFixture) -> None:
    seating, _ = opened(Client(threads=0), workers=1)
    hub: Any = SimpleNamespace(has_joined=False)

    seating._warn_if_no_worker(hub)

    assert "start one: dask worker tcp://127.0.0.1:8786" in caplog.text


def test_a_scheduler_that_stays_away_stops_the_run_and_it_is_said_what_to_type() -> None:
    client = Client(threads=1)
    seating, _ = opened(client, workers=1)
    seating._place = Dask("dask://127.0.0.1:8786")
    stopped: list[str] = []
    held: list[bool] = []
    seating._run.shutdown.stop = lambda reason, **_: stopped.append(reason)
    client.status = "closed"

    reachable = seating._is_reachable(SimpleNamespace(pause=held.append))

    assert (reachable, held) == (False, [True])
    reason, _, advice = stopped[0].partition("; ")
    assert reason == "the loss of the Dask scheduler at tcp://127.0.0.1:8786"
    assert "dask scheduler --port 8786" in advice
    assert "dask worker tcp://127.0.0.1:8786" in advice
    assert "it continues where it stopped, and interrupted items run again" in advice


@pytest.mark.parametrize("address", ["tcp://10.0.0.5:8786", "tcp://scheduler:8786", "ws://10.0.0.5:8786"])
def test_shipping_secrets_past_a_scheduler_that_is_spoken_to_unencrypted_is_warned_of(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened(Client(1, address), workers=1, ship_secrets=True)

    (said,) = [record for record in caplog.records if "unencrypted" in record.getMessage()]
    assert said.levelno == logging.WARNING
    assert "use a tls:// scheduler" in said.getMessage()


@pytest.mark.parametrize(
    ("address", "ship_secrets"),
    [
        ("tls://10.0.0.5:8786", True),
        ("tcp://127.0.0.1:8786", True),
        ("tcp://[::1]:8786", True),
        ("tcp://localhost:8786", True),
        ("inproc://10.0.0.5/1/2", True),
        ("tcp://10.0.0.5:8786", False),
    ],
)
def test_nothing_is_said_where_nobody_can_listen(
    address: str, ship_secrets: bool, caplog: pytest.LogCaptureFixture
) -> None:
    opened(Client(1, address), workers=1, ship_secrets=ship_secrets)

    assert "unencrypted" not in caplog.text
