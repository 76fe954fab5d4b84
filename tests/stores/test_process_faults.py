"""Leases survive faults: processes that stop or die, full disks, clocks that are set."""

from __future__ import annotations

import gc
import json
import random
import shutil
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, Lease, Limit, NoCredentialAvailable
from agentos.errors import NotAStore, StoreDamaged, StoreElsewhere, StoreError, StoreTooNew, StoreUnavailable
from agentos.stores import factory
from agentos.stores.sqlite import file
from agentos.stores.sqlite.file import StoreFile
from agentos.testing import FakeClock
from agentos.util.sqlite.connect import connect

from ..contract.store_contract import SHARED, Place, StandingStill
from .pool_child import Spec, credentials_of
from .pool_processes import (
    TRIALS,
    Child,
    DrivenTime,
    Family,
    bytes_of,
    eventually,
    family,
    in_flight,
    install_triggers,
    keys,
    locked_by,
    order_of,
    rows,
    session_of,
    sound,
    trials,
    wait_for_grants,
)

SHORT = 0.5  # how long leases last of those who really lose them
LONG = 30.0  # and of those who do not, unless a test lets that time pass
SECRETS = ("planted-secret-one", "planted-secret-two")
NOTICED = 0.2  # by the thread that looks after a pool, on a clock that a test moves
GRACE = 6.0  # for what comes by itself, where it might never come: a machine may have other things to do


def opened(processes: Family, path: Path, credentials: list[Spec], ttl: float = SHORT, **options: object) -> Child:
    """A process that has the store open."""
    child = processes.child()
    child.do("open", path=str(path), credentials=credentials, lease_ttl=ttl, **options)
    return child


def holder_of(processes: Family, path: Path, credential: Spec, **options: object) -> tuple[Child, int]:
    """A process that holds a lease of that credential, and its token."""
    child = opened(processes, path, [credential], **options)  # type: ignore[arg-type]
    return child, child.do("acquire", timeout=20.0)["token"]


def said_to_be_lost(child: Child, token: int) -> int:
    return sum(f"lease {token} " in line and "is lost" in line for line in child.do("said"))


# -- a holder that stands still ------------------------------------------------------------------------------------

HOUR, DAY = 3600.0, 86_400.0
TOKENS = [{"dimension": "tokens", "amount": 1000, "per": 3600}]
AFTERWARDS = {
    "held": {},
    "release": {},
    "settle": {"tokens": 900},
    "rate_limited": {"seconds": 3600},
    "reveal": {},
}


@pytest.mark.parametrize("first", AFTERWARDS)
def test_a_holder_that_stood_still_past_its_time_finds_its_lease_lost_and_does_no_harm(
    processes: Family, path: Path, driven: DrivenTime, first: str
) -> None:
    """*first* is the first thing it does when it goes on; it was asked for before, so that nothing comes between."""
    credentials = keys(trials(4), limits=TOKENS)
    holders = [holder_of(processes, path, each, ttl=LONG, clock=driven.file) for each in credentials]
    successor = opened(processes, path, credentials, ttl=LONG, clock=driven.file)
    for holder, _ in holders:
        holder.stop_outside_a_step(path)
    due = [session_of(path, holder)[1] for holder, _ in holders]
    for number in range(len(holders)):
        successor.begin(f"successor {number}", "acquire", timeout=HOUR)
    driven.let_come(min(due) - LONG / 3)
    assert successor.ask("acquire", timeout=0.0).error == "NoCredentialAvailable"

    driven.let_come(max(due))
    answers = [successor.outcome(f"successor {number}") for number in range(len(holders))]

    assert all(holder.stopped for holder, _ in holders)  # it was really granted while the other still had it
    assert {answer.got["name"] for answer in answers} == {credential["name"] for credential in credentials}
    records = rows(path, "select * from quotas")
    leases = rows(path, "select * from leases")

    for holder, token in holders:
        holder.tell(first, token=token, **AFTERWARDS[first])
    for holder, _ in holders:
        holder.go_on()
    for holder, token in holders:
        found = {first: holder.answer()}
        found |= {what: holder.ask(what, token=token, **more) for what, more in AFTERWARDS.items() if what != first}
        assert found.pop("reveal").error == "LeaseLost"
        assert {what: answer.got for what, answer in found.items()} == dict.fromkeys(found, False)
        eventually(lambda holder=holder, token=token: said_to_be_lost(holder, token) == 1)  # type: ignore[misc]

    assert rows(path, "select * from quotas") == records
    assert rows(path, "select * from leases") == leases
    tokens = [answer.got["token"] for answer in answers]
    assert min(tokens) > max(token for _, token in holders)
    assert [successor.do("held", token=token) for token in tokens] == [True] * len(tokens)
    assert successor.do("release_all") == [True] * len(tokens)
    for (holder, _), credential in zip(holders, credentials, strict=True):
        again = holder.do("acquire", timeout=20.0)
        assert again["name"] == credential["name"]
        assert holder.do("held", token=again["token"])


# -- kill -9 -------------------------------------------------------------------------------------------------------

ONE = {"tokens": 1}
PLENTY = [{"dimension": "tokens", "amount": 10_000_000, "per": 60}]  # of those who give no cost, one at a time
KEYS_TO_KILL_FOR = [
    {"name": f"key-{number}", "slots": 1 + number % 3, "quota": "org" if number % 2 else None, "limits": PLENTY}
    for number in range(6)
]
SLOTS = Counter({str(each["name"]): int(str(each["slots"])) for each in KEYS_TO_KILL_FOR})
HOLDERS = 5  # with at most two slots each, so that at least two of the twelve are left to those who come and go


def tokens_so_far(path: Path) -> int:
    return int(rows(path, "select max(token) from log")[0][0])


def judge_after_the_kills(path: Path, tokens: list[int]) -> None:
    assert tokens == sorted(set(tokens))
    assert rows(path, "select count(*) from leases") == [(0,)]
    assert in_flight(path) == 0
    assert sound(path) == "ok"


def test_leases_of_killed_processes_are_freed_while_others_are_alive(processes: Family, path: Path) -> None:
    """152 kills, of holders and of processes in the middle of anything, while one that lives on waits for the slots."""
    dice = random.Random(4)
    survivor = opened(processes, path, KEYS_TO_KILL_FOR, ttl=LONG)
    tokens: list[int] = []
    held_by_the_dead = 0
    for _ in range(trials(4)):
        children = [opened(processes, path, KEYS_TO_KILL_FOR) for _ in range(38)]
        for number, child in enumerate(children):
            if number < HOLDERS:
                child.tell("acquire_some", count=dice.randint(1, 2), cost=dice.choice((ONE, None)))
            else:
                child.tell("churn", seed=dice.randrange(1 << 30))
        for child in children[:HOLDERS]:
            child.answer()
        wait_for_grants(path, tokens_so_far(path) + 30)
        dice.shuffle(children)
        for child in children:
            killed_at = child.kill()
        held_by_the_dead += len(rows(path, "select token from leases"))

        answer = survivor.ask("acquire_all", slots=sum(SLOTS.values()), timeout=20.0, cost=ONE)

        assert Counter(name for name, _ in answer.got) == SLOTS  # no slot is lost
        assert answer.ended <= killed_at + SHORT + GRACE
        tokens += [token for _, token in answer.got]
        assert all(survivor.do("release_all"))
    assert held_by_the_dead >= trials(4) * 3
    eventually(lambda: not rows(path, "select token from leases"))
    judge_after_the_kills(path, tokens)


def test_leases_of_killed_processes_are_free_at_once_if_no_process_is_alive(processes: Family, path: Path) -> None:
    """50 kills, one after the other. Leases last long, so that nobody can get one by waiting."""
    dice = random.Random(5)
    tokens: list[int] = []
    for _ in range(trials(50)):
        child = opened(processes, path, KEYS_TO_KILL_FOR, ttl=LONG)

        got = child.do("acquire_all", slots=sum(SLOTS.values()), timeout=0.0, cost=ONE)

        assert Counter(name for name, _ in got) == SLOTS
        tokens += [token for _, token in got]
        if dice.random() < 0.5:
            child.do("release_all")
            child.tell("churn", seed=dice.randrange(1 << 30))
            wait_for_grants(path, tokens[-1] + dice.randint(1, 20))
        child.kill()
        assert rows(path, "select count(*) from sessions") == [(1,)]
    last = opened(processes, path, KEYS_TO_KILL_FOR, ttl=LONG)
    judge_after_the_kills(path, tokens)
    assert last.do("acquire", timeout=0, cost=ONE)["token"] > tokens[-1]


# -- the end of a process ------------------------------------------------------------------------------------------

AT_ONCE = LONG / 3  # a tenth of a second on a machine that has nothing else to do; its time is over much later


def given_back_and_taken(holder: Child, successor: Child, end: Callable[[], None]) -> float:
    """Return how long after the call of *end* the successor had the holder's slot."""
    assert successor.do("snapshot") == [{"name": "key-1", "state": "leased"}]
    successor.begin("wait", "acquire", requester="successor", timeout=20.0)
    eventually(lambda: successor.do("waits", requester="successor"))
    asked_at = time.monotonic()
    end()
    answer = successor.outcome("wait")
    assert answer.got["name"] == "key-1"
    return answer.ended - asked_at


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("sys.exit", 3), ("exception", 1), ("pool closed", 0)])
def test_a_process_that_ends_gives_back_at_once_what_it_held(
    processes: Family, path: Path, how: str, code: int
) -> None:
    holder, _ = holder_of(processes, path, *keys(1), ttl=LONG)
    successor = opened(processes, path, keys(1), ttl=LONG)

    took = given_back_and_taken(holder, successor, lambda: holder.end(how))

    assert took < AT_ONCE
    assert holder.wait()[0] == code
    assert rows(path, "select pid from sessions") == [(successor.pid,)]


def test_a_pool_that_is_forgotten_gives_back_at_once_what_it_held(processes: Family, path: Path) -> None:
    holder, _ = holder_of(processes, path, *keys(1), ttl=LONG)
    successor = opened(processes, path, keys(1), ttl=LONG)

    took = given_back_and_taken(holder, successor, lambda: holder.tell("forget"))

    assert took < AT_ONCE
    assert holder.answer().error is None
    eventually(lambda: rows(path, "select pid from sessions") == [(successor.pid,)])  # another thread takes it out


def test_a_pool_that_is_closed_leaves_when_its_last_lease_is_given_back(processes: Family, path: Path) -> None:
    holder, token = holder_of(processes, path, *keys(1), ttl=LONG)
    successor = opened(processes, path, keys(1), ttl=LONG)
    holder.do("close")
    assert successor.do("snapshot") == [{"name": "key-1", "state": "leased"}]

    took = given_back_and_taken(holder, successor, lambda: holder.tell("release", token=token))

    assert took < AT_ONCE
    assert holder.answer().got is True
    assert rows(path, "select pid from sessions") == [(successor.pid,)]


@pytest.mark.parametrize("how", ["_exit", "SIGTERM"])
def test_what_a_process_held_that_ended_without_a_chance_to_say_so_is_free_when_its_time_is_over(
    processes: Family, path: Path, driven: DrivenTime, how: str
) -> None:
    holder, _ = holder_of(processes, path, *keys(1), ttl=LONG, clock=driven.file)
    successor = opened(processes, path, keys(1), ttl=LONG, clock=driven.file)
    holder.end(how)
    holder.wait()
    _, due = session_of(path, holder)
    driven.let_come(due - LONG / 3)
    assert successor.ask("acquire", timeout=0.0).error == "NoCredentialAvailable"

    driven.let_come(due)

    assert successor.do("acquire", timeout=20.0)["name"] == "key-1"


# -- a disk that is full -------------------------------------------------------------------------------------------

CANNOT, CAN_AGAIN = "cannot be written", "can be written again"


def said_of_the_disk(child: Child) -> list[str]:
    return [word for line in child.do("said") for word in (CANNOT, CAN_AGAIN) if word in line]


def test_on_a_full_disk_nothing_is_granted_and_waiters_keep_waiting(processes: Family, path: Path) -> None:
    witness, token = holder_of(processes, path, *keys(1), ttl=LONG)
    install_triggers(path)
    child = opened(processes, path, keys(2), ttl=LONG)
    child.do("acquire", timeout=20.0)
    child.begin("patient", "acquire", timeout=20.0, requester="patient")
    eventually(lambda: child.do("waits", requester="patient"))

    child.do("no_file_larger_than", size=0)
    assert witness.do("release", token=token)  # now there is one to be had
    answer = child.ask("acquire", timeout=0.6)

    assert answer.error == "NoCredentialAvailable"
    assert 0.6 <= answer.ended - answer.began < 0.6 + GRACE
    eventually(lambda: CANNOT in said_of_the_disk(child))
    assert child.do("waits", requester="patient")
    assert [(event.op, event.token) for event in order_of(path)] == [("granted", 2), ("ended", 1)]
    child.do("no_file_larger_than", size=None)
    assert child.outcome("patient").got["name"] == "key-1"


def test_a_full_disk_is_spoken_of_once_and_once_more_when_it_is_over(processes: Family, path: Path) -> None:
    """However often the disk is tried meanwhile, by those who wait, report, and look after the leases."""
    child, token = holder_of(processes, path, keys(1, limits=TOKENS)[0], ttl=LONG)
    child.do("no_file_larger_than", size=0)
    for _ in range(2):
        assert child.ask("acquire", timeout=0.4).error == "NoCredentialAvailable"
        assert child.do("settle", token=token, tokens=100)
        assert child.do("held", token=token)
        child.do("snapshot")
    eventually(lambda: said_of_the_disk(child) == [CANNOT])

    child.do("no_file_larger_than", size=None)

    eventually(lambda: len(said_of_the_disk(child)) > 1)
    assert child.do("release", token=token)
    assert said_of_the_disk(child) == [CANNOT, CAN_AGAIN]


def test_a_full_disk_is_not_tried_all_the_time(processes: Family, path: Path) -> None:
    child = opened(processes, path, keys(2), ttl=LONG)
    child.do("acquire", timeout=20.0)
    child.do("no_file_larger_than", size=0)
    before = child.do("worked")

    assert child.ask("acquire", timeout=1.0).error == "NoCredentialAvailable"

    eventually(lambda: CANNOT in said_of_the_disk(child))
    assert child.do("worked") - before < 0.3


def test_what_is_reported_while_the_disk_is_full_is_written_once_when_there_is_room(
    processes: Family, path: Path
) -> None:
    credentials = keys(2, limits=TOKENS)
    witness = opened(processes, path, credentials, ttl=LONG)
    install_triggers(path)
    child = opened(processes, path, credentials, ttl=LONG)
    first, second = child.do("acquire", timeout=20.0)["token"], child.do("acquire", timeout=5.0)["token"]
    before = rows(path, "select * from quotas")

    child.do("no_file_larger_than", size=0)
    answers = [
        child.ask("settle", token=first, tokens=300),
        child.ask("rate_limited", token=first, seconds=3600),
        child.ask("settle", token=second, tokens=200),
        child.ask("release", token=second),
    ]

    assert [answer.got for answer in answers] == [True] * 4
    assert max(answer.ended - answer.began for answer in answers) < GRACE
    assert rows(path, "select * from quotas") == before
    assert [event.op for event in order_of(path)] == ["granted", "granted"]
    child.do("no_file_larger_than", size=None)
    eventually(lambda: len(order_of(path)) == 3)
    assert [(event.op, event.token) for event in order_of(path)][2:] == [("ended", second)]
    assert sorted(usage["amounts"] for usage in usages(path)) == [[200], [300]]
    assert [usage["in_flight"] for usage in usages(path)] == [0, 0]
    assert [row["state"] for row in witness.do("snapshot")] == ["leased", "available"]
    assert child.do("release", token=second) is False
    assert child.do("release", token=first)
    assert [row["state"] for row in witness.do("snapshot")] == ["parked", "available"]


def usages(path: Path) -> list[dict[str, Any]]:
    """Return the usage reported of each quota's one limit."""
    records = [json.loads(record) for (record,) in rows(path, "select record from quotas order by number")]
    return [limit["usage"] for record in records for limit in record["limits"].values()]


def test_a_lease_outlives_a_full_disk_if_there_is_room_again_before_its_time_is_over(
    processes: Family, path: Path, driven: DrivenTime
) -> None:
    child, token = holder_of(processes, path, *keys(1), ttl=LONG, clock=driven.file)
    child.do("no_file_larger_than", size=0)
    driven.let_pass(LONG / 2)
    eventually(lambda: CANNOT in said_of_the_disk(child))  # it should have been renewed
    _, due = session_of(path, child)

    child.do("no_file_larger_than", size=None)

    eventually(lambda: session_of(path, child)[1] > due)
    assert child.do("held", token=token)
    assert not said_to_be_lost(child, token)
    assert child.do("release", token=token)


def test_a_lease_is_lost_and_that_is_said_if_the_disk_is_full_for_longer_than_its_time(
    processes: Family, path: Path
) -> None:
    child, token = holder_of(processes, path, *keys(1), ttl=SHORT)
    successor = opened(processes, path, keys(1), ttl=LONG)
    child.do("no_file_larger_than", size=0)

    got = successor.do("acquire", timeout=20.0)

    assert got["token"] > token
    assert child.do("held", token=token) is False
    assert child.ask("reveal", token=token).error == "LeaseLost"
    assert child.do("release", token=token) is False
    eventually(lambda: said_to_be_lost(child, token) == 1)
    child.do("no_file_larger_than", size=None)
    child.begin("again", "acquire", timeout=20.0)
    eventually(lambda: CAN_AGAIN in said_of_the_disk(child))
    assert successor.do("held", token=got["token"])
    assert successor.do("release", token=got["token"])
    assert child.outcome("again").got["token"] > got["token"]
    assert said_to_be_lost(child, token) == 1


class SmallDisk:
    """Connections to SQLite for which the file has no room for one more page, while it is full."""

    def __init__(self) -> None:
        self._full = False
        self._connections: list[sqlite3.Connection] = []

    def connect(self, uri: str) -> sqlite3.Connection:
        connection = connect(uri)
        self._connections.append(connection)
        self._limit(connection)
        return connection

    def be(self, *, full: bool) -> None:
        self._full = full
        for connection in self._connections:
            try:
                self._limit(connection)
            except sqlite3.ProgrammingError:
                pass  # it is closed

    def _limit(self, connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("pragma page_count").fetchone()
        connection.execute(f"pragma max_page_count = {pages if self._full else 1 << 30}")


def test_a_lease_for_which_the_file_has_no_page_left_is_not_granted(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SmallDisk()
    monkeypatch.setattr(factory, "StoreFile", partial(StoreFile, connect=disk.connect))
    pool = CredentialCoordinator([Credential("planted-secret", slots=200)], store=path)
    disk.be(full=True)
    leases: list[Lease] = []

    def take_all() -> None:
        while True:
            leases.append(pool.acquire("somebody with a long name" * 8, timeout=0.5))

    with pytest.raises(NoCredentialAvailable):
        take_all()

    assert len(leases) < 50
    assert [token for (token,) in rows(path, "select token from leases")] == [lease.token for lease in leases]
    eventually(lambda: any(CANNOT in message and "the disk is full" in message for message in caplog.messages))
    disk.be(full=False)
    assert (_held := pool.acquire(timeout=20.0)).token == leases[-1].token + 1
    eventually(lambda: [message for message in caplog.messages if CAN_AGAIN in message])  # said by another thread
    pool.close()


# -- the hour is set -----------------------------------------------------------------------------------------------

JUMPS = [HOUR, -HOUR, DAY, -DAY]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Several pools of one store in this process, and one clock that the test moves."""
    (store,) = [store for store in SHARED if store.name == "sqlite"]
    place = Place(store, tmp_path)
    yield place
    place.close()


@pytest.mark.parametrize("jump", JUMPS)
def test_setting_the_clock_makes_nothing_happen_early_or_late(place: Place, jump: float) -> None:
    one, two = place.open(*SECRETS, lease_ttl=30.0), place.open(*SECRETS, lease_ttl=30.0)
    held, cooling = one.acquire(), one.acquire()
    assert cooling.rate_limited(100.0)
    assert cooling.release()
    waiter = place.waiting(two, "waiter", timeout=1000.0)

    place.clock.wall_offset += jump

    for _ in range(9):
        place.pass_time(11.0)
        assert waiter.running
        assert held.held
        assert [row.state for row in two.snapshot()] == ["leased", "cooling"]
        place.clock.wall_offset += jump
    place.pass_time(1.0 + NOTICED)
    assert waiter.result().name == cooling.name
    assert held.held


@pytest.mark.parametrize("jump", JUMPS)
def test_setting_the_clock_does_not_change_when_a_dead_process_is_noticed(place: Place, jump: float) -> None:
    _held = place.open(SECRETS[0], lease_ttl=30.0, clock=StandingStill(place.clock)).acquire()
    two = place.open(SECRETS[0], lease_ttl=30.0)
    waiter = place.waiting(two, "waiter", timeout=1000.0)

    place.clock.wall_offset += jump

    place.pass_time(29.0)
    assert waiter.running
    place.pass_time(1.0 + NOTICED)
    assert waiter.result().held


def test_a_calendar_limit_follows_the_wall_clock(place: Place) -> None:
    place.clock.wall_offset = 1_700_006_400.0 - 2 * HOUR - place.clock.now()  # two hours before midnight
    credential = Credential(SECRETS[0], limits=[Limit("requests", 1, per="day")])
    one, two = place.open(credential), place.open(credential)
    assert one.acquire_nowait().release()
    with pytest.raises(NoCredentialAvailable) as refused:
        two.acquire_nowait()
    assert refused.value.next_free_in == pytest.approx(2 * HOUR)

    place.clock.wall_offset += HOUR

    with pytest.raises(NoCredentialAvailable) as refused:
        two.acquire_nowait()
    assert refused.value.next_free_in == pytest.approx(HOUR)
    place.clock.wall_offset += HOUR
    assert two.acquire_nowait().release()


def test_setting_the_clock_loses_no_leases_of_real_processes_and_starts_none_early(
    processes: Family, path: Path, driven: DrivenTime
) -> None:
    holder = opened(processes, path, keys(2), ttl=LONG, clock=driven.file)
    held, cooling = holder.do("acquire"), holder.do("acquire")
    other = opened(processes, path, keys(2), ttl=LONG, clock=driven.file)
    assert holder.do("rate_limited", token=cooling["token"], seconds=5 * LONG)
    until = driven.now() + 5 * LONG
    assert holder.do("release", token=cooling["token"])
    other.begin("wait", "acquire", requester="other", timeout=HOUR)

    def let_pass(seconds: float) -> None:
        """So that both are renewed by themselves."""
        before = {child: session_of(path, child)[1] for child in (holder, other)}
        driven.let_pass(seconds)
        eventually(lambda: all(session_of(path, child)[1] > due for child, due in before.items()))

    for jump in (*JUMPS, -HOUR):
        driven.set_hour(jump)
        let_pass(LONG / 2)
    assert other.do("waits", requester="other")
    while driven.now() < until:
        let_pass(LONG / 2)

    assert other.outcome("wait").got["name"] == cooling["name"]
    assert holder.do("held", token=held["token"])
    assert holder.do("release", token=held["token"])
    assert not [line for child in (holder, other) for line in child.do("said") if "lost" in line]


# -- another boot --------------------------------------------------------------------------------------------------


def boot(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    monkeypatch.setattr(file, "read_boot_id", lambda: base)


@pytest.mark.parametrize("now", [12.0, 900_000.0])
@pytest.mark.parametrize("seconds", [1500.0, 599.0])
def test_after_a_boot_a_cooldown_ends_by_the_wall_clock(
    path: Path, monkeypatch: pytest.MonkeyPatch, now: float, seconds: float
) -> None:
    """*now* is what the new boot's clock shows: it may have run for shorter, or, in a container, for longer."""
    clock = FakeClock(now=50_000.0)
    boot(monkeypatch, "boot-1")
    with CredentialCoordinator(SECRETS, store=path, clock=clock) as pool, pool.lease() as lease:
        lease.rate_limited(seconds)
        rested = lease.name
    off = 300.0

    boot(monkeypatch, "boot-2")
    later = FakeClock(now=now, wall_offset=clock.wall() + off - now)
    with CredentialCoordinator(SECRETS, store=path, clock=later) as pool:
        assert [row.name for row in pool.snapshot() if row.state in ("cooling", "parked")] == [rested]
        other = pool.acquire_nowait()
        with pytest.raises(NoCredentialAvailable) as refused:
            pool.acquire_nowait()
        assert other.name != rested
        assert refused.value.next_free_in == pytest.approx(seconds - off)
        later.advance(seconds - off)
        assert (_held := pool.acquire_nowait()).name == rested
        other.release()


@pytest.mark.parametrize("back", [1.0, HOUR, 400 * DAY])
def test_after_a_boot_with_the_clock_set_back_a_cooldown_is_not_extended(
    path: Path, monkeypatch: pytest.MonkeyPatch, back: float
) -> None:
    clock = FakeClock(now=50_000.0)
    boot(monkeypatch, "boot-1")
    with CredentialCoordinator(SECRETS[:1], store=path, clock=clock) as pool, pool.lease() as lease:
        lease.rate_limited(1500.0)

    boot(monkeypatch, "boot-2")
    later = FakeClock(now=12.0, wall_offset=clock.wall() - back - 12.0)
    with CredentialCoordinator(SECRETS[:1], store=path, clock=later) as pool:
        with pytest.raises(NoCredentialAvailable) as refused:
            pool.acquire_nowait()
        assert refused.value.next_free_in is not None
        assert 0 < refused.value.next_free_in <= 1500.0
        later.advance(1500.0)
        assert pool.acquire_nowait().release()


def test_after_a_boot_the_leases_of_the_old_one_are_gone(
    processes: Family, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = keys(2, limits=TOKENS)
    old = opened(processes, path, credentials, ttl=LONG, boot="boot-1")
    old.do("acquire_all", slots=2, timeout=20.0)
    assert in_flight(path) == 2
    old.kill()
    assert rows(path, "select count(*) from leases") == [(2,)]

    boot(monkeypatch, "boot-2")
    clock = FakeClock(now=12.0, wall_offset=time.time() - 12.0)
    with CredentialCoordinator(credentials_of(credentials), store=path, clock=clock) as pool:
        assert in_flight(path) == 0
        leases = [pool.acquire_nowait(), pool.acquire_nowait()]
        assert [lease.release() for lease in leases] == [True, True]


def test_while_processes_of_another_boot_are_alive_the_file_is_refused_and_left_as_it_is(
    processes: Family, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container of the same machine that has a time of its own."""
    other, token = holder_of(processes, path, *keys(1), ttl=LONG, boot="boot-1")
    boot(monkeypatch, "boot-2")
    before = everything(path)

    with pytest.raises(StoreElsewhere):
        CredentialCoordinator(SECRETS, store=path)

    assert everything(path) == before
    assert other.do("held", token=token)
    other.end("return")
    other.wait()
    CredentialCoordinator(SECRETS, store=path).close()


def everything(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All that is in the file."""
    tables = [name for (name,) in rows(path, "select name from sqlite_schema where type = 'table' order by name")]
    return {name: rows(path, f"select * from {name}") for name in tables}


ANOTHER_TIME = ("unshare", "--time", "--monotonic", "86400", "--boottime", "86400", "--fork")


def may_make_a_time_namespace() -> bool:
    if not shutil.which("unshare"):
        return False
    return not subprocess.run([*ANOTHER_TIME, "true"], check=False, stderr=subprocess.DEVNULL).returncode


if TRIALS > 1 and may_make_a_time_namespace():  # heavier runs only

    def test_processes_in_another_time_namespace_are_recognised(path: Path) -> None:
        with family() as ours, family(*ANOTHER_TIME) as theirs:
            here, _ = holder_of(ours, path, *keys(1), ttl=LONG)
            there = theirs.child()

            refused = there.ask("open", path=str(path), credentials=keys(1))
            here.kill()
            there.do("open", path=str(path), credentials=keys(1), lease_ttl=LONG)

            assert refused.error == "StoreElsewhere"
            assert there.do("acquire", timeout=0.0)["name"] == "key-1"
            assert ours.child().ask("open", path=str(path), credentials=keys(1)).error == "StoreElsewhere"


# -- a process that stands still in the middle of a step -----------------------------------------------------------


def test_a_stopped_process_with_the_file_locked_delays_no_caller_beyond_its_timeout(
    processes: Family, path: Path
) -> None:
    child = opened(processes, path, keys(3), ttl=LONG)
    looper = opened(processes, path, keys(3), ttl=LONG)
    first, second = child.do("acquire")["token"], child.do("acquire")["token"]
    third = looper.do("acquire")["token"]
    locker = processes.child()
    locker.do("lock_the_file", path=str(path))
    locker.stop()

    asked = child.ask("acquire", timeout=0.5)
    released = child.ask("release", token=first)
    limited = child.ask("rate_limited", token=second, seconds=60.0)
    worked = looper.do("worked")
    in_loop = looper.do("wait_in_a_loop", timeout=1.0)

    assert locker.stopped
    assert locked_by(path, locker)
    assert asked.error == "NoCredentialAvailable"
    assert 0.5 <= asked.ended - asked.began < 0.5 + GRACE
    assert released.got is True
    assert limited.got is True
    assert max(released.ended - released.began, limited.ended - limited.began) < GRACE
    assert not in_loop["got"]
    assert 1.0 <= in_loop["waited"] < 1.0 + GRACE
    assert in_loop["longest"] < 0.25
    assert looper.do("worked") - worked < 0.5  # nobody tries all the time
    assert [child.do("held", token=second), looper.do("held", token=third)] == [True, True]
    locker.go_on()
    locker.do("unlock_the_file")
    assert looper.do("acquire", timeout=20.0)["token"] > third
    eventually(lambda: not rows(path, "select 1 from leases where token = ?", first))
    assert child.do("release", token=second)
    assert looper.do("release_all") == [True, True]
    eventually(lambda: sorted(row["state"] for row in looper.do("snapshot")) == ["available", "available", "cooling"])


def test_a_lease_outlives_a_file_that_is_locked_for_a_part_of_its_time(
    processes: Family, path: Path, driven: DrivenTime
) -> None:
    child, token = holder_of(processes, path, *keys(1), ttl=LONG, clock=driven.file)
    _, due = session_of(path, child)
    locker = processes.child()
    locker.do("lock_the_file", path=str(path))
    locker.stop()
    driven.let_come(due - LONG / 2)  # it would have been renewed by then

    locker.go_on()
    locker.do("unlock_the_file")

    eventually(lambda: session_of(path, child)[1] > due)
    assert child.do("held", token=token)
    assert child.do("release", token=token)


def test_a_process_that_stood_still_in_the_middle_of_its_own_grant_does_not_use_it(
    processes: Family, path: Path, driven: DrivenTime
) -> None:
    """The others cannot go on meanwhile; but by its time they may take what it was granted in the past."""
    child = opened(processes, path, keys(1), ttl=LONG, clock=driven.file)
    other = opened(processes, path, keys(1), ttl=LONG, clock=driven.file)
    child.do("stop_in_the_next_grant")
    child.tell("acquire", timeout=HOUR)
    child.wait_stopped()
    other.begin("wait", "acquire", timeout=HOUR)
    driven.let_pass(LONG)

    child.go_on()

    answer = child.answer()
    got = other.outcome("wait").got
    if answer.error is None:
        assert child.do("held", token=answer.got["token"]) is False
        assert child.ask("reveal", token=answer.got["token"]).error == "LeaseLost"
        assert child.do("release", token=answer.got["token"]) is False
        assert got["token"] > answer.got["token"]
    else:
        assert answer.error == "NoCredentialAvailable"
    assert other.do("held", token=got["token"])
    assert other.do("release", token=got["token"])
    assert child.do("acquire", timeout=20.0)["token"] > got["token"]


def test_what_was_reported_while_the_file_was_locked_is_not_lost_when_the_pool_is_closed_then(
    processes: Family, path: Path
) -> None:
    child, token = holder_of(processes, path, *keys(1), ttl=LONG)
    locker = processes.child()
    locker.do("lock_the_file", path=str(path))
    assert child.do("rate_limited", token=token, seconds=3600.0)
    assert child.do("release", token=token)

    child.begin("close", "close")
    locker.do("unlock_the_file")

    assert child.outcome("close").error is None
    next_one = opened(processes, path, keys(1), ttl=LONG)
    assert next_one.do("snapshot") == [{"name": "key-1", "state": "parked"}]


# -- forks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2], ids=["nothing is free", "something is free"])
def test_a_pool_that_was_forked_says_to_the_child_that_each_process_needs_its_own(
    processes: Family, path: Path, slots: int
) -> None:
    parent, _ = holder_of(processes, path, *keys(1, slots), ttl=LONG)

    (in_child,) = parent.do("fork", commands=[("acquire", {"timeout": 0.5})])

    assert in_child["error"] == "StoreUnavailable"
    assert "in each process" in in_child["text"]


@pytest.mark.parametrize("how", ["return", "sys.exit", "_exit"])
def test_whatever_a_forked_child_does_with_the_pool_of_its_parent_the_parent_is_unharmed(
    processes: Family, path: Path, how: str
) -> None:
    parent, token = holder_of(processes, path, keys(1, limits=TOKENS)[0], ttl=LONG)
    before = [rows(path, f"select * from {table}") for table in ("leases", "quotas", "credentials")]
    commands = [(what, {"token": token, **more}) for what, more in AFTERWARDS.items()]

    parent.do("fork", how=how, commands=[("acquire", {"timeout": 0.1}), *commands, ("close", {})])

    assert [rows(path, f"select * from {table}") for table in ("leases", "quotas", "credentials")] == before
    stranger = opened(processes, path, keys(1, limits=TOKENS), ttl=LONG)  # it is not alone
    assert stranger.do("snapshot") == [{"name": "key-1", "state": "leased"}]
    assert parent.do("held", token=token)
    assert parent.do("release", token=token)
    assert parent.do("acquire", timeout=0.0)["token"] > token


def test_a_forked_child_can_make_a_pool_of_its_own_on_the_same_file(processes: Family, path: Path) -> None:
    parent = opened(processes, path, keys(2), ttl=LONG)
    mine = parent.do("acquire")
    own = {"path": str(path), "credentials": keys(2), "pool": "own", "lease_ttl": LONG}

    in_child = parent.do(
        "fork",
        commands=[
            ("open", own),
            ("acquire", {"pool": "own", "timeout": 0.0}),
            ("acquire", {"pool": "own", "timeout": 0.0}),
        ],
    )

    assert in_child[1]["value"]["name"] != mine["name"]
    assert in_child[2]["error"] == "NoCredentialAvailable"
    assert parent.do("held", token=mine["token"])
    stranger = opened(processes, path, keys(2), ttl=LONG)  # it is not alone: else it would take what the parent has
    assert stranger.do("acquire", timeout=20.0)["name"] == in_child[1]["value"]["name"]
    assert stranger.ask("acquire", timeout=0.0).error == "NoCredentialAvailable"
    assert parent.do("release", token=mine["token"])
    assert stranger.do("acquire", timeout=20.0)["name"] == mine["name"]


def test_a_forked_child_with_a_pool_of_its_own_counts_as_alive_when_its_parent_is_gone(
    processes: Family, path: Path
) -> None:
    child = opened(processes, path, keys(1), ttl=LONG)
    pid = child.do("go_on_in_a_fork")
    assert child.wait()[0] == 0
    child.do("open", path=str(path), credentials=keys(1), pool="own", lease_ttl=LONG)
    own = child.do("acquire", pool="own", timeout=0.0)

    stranger = opened(processes, path, keys(1), ttl=LONG)

    assert rows(path, "select name, pid from held") == [("key-1", pid)]
    assert stranger.ask("acquire", timeout=0.0).error == "NoCredentialAvailable"
    assert child.do("held", token=own["token"])
    assert child.do("release", token=own["token"])
    assert stranger.do("acquire", timeout=20.0)["name"] == "key-1"


def test_a_child_that_was_forked_in_the_middle_of_a_step_is_refused_the_pool_of_its_parent(
    processes: Family, path: Path
) -> None:
    parent = opened(processes, path, keys(3), ttl=LONG)

    found = parent.do("fork_in_the_middle", times=10, commands=[("acquire", {"timeout": 1.0})])

    assert [answer["error"] for answers in found for answer in answers or [{"error": "it hangs"}]] == [
        "StoreUnavailable"
    ] * 10


def test_a_child_that_was_forked_in_the_middle_of_a_step_can_make_a_pool_of_its_own(
    processes: Family, path: Path
) -> None:
    parent = opened(processes, path, keys(3), ttl=LONG)
    own = {"path": str(path), "credentials": keys(3), "pool": "own", "lease_ttl": LONG}

    found = parent.do(
        "fork_in_the_middle",
        times=trials(20),
        commands=[
            ("open", own),
            ("acquire", {"pool": "own", "timeout": 20.0}),
            ("release_all", {}),
            ("close", {"pool": "own"}),
        ],
    )

    assert len(found) == trials(20), f"child {len(found)} hangs"
    assert [answer for answers in found for answer in answers if "error" in answer] == []
    assert parent.do("acquire", timeout=20.0)
    assert sound(path) == "ok"


# -- an interpreter that is kept from running threads --------------------------------------------------------------


def test_a_lease_is_lost_and_that_is_said_if_the_interpreter_could_run_no_thread_for_longer_than_its_time(
    processes: Family, path: Path
) -> None:
    child, token = holder_of(processes, path, *keys(1))
    successor = opened(processes, path, keys(1), ttl=LONG)
    child.tell("keep_the_interpreter", seconds=2 * SHORT)
    child.tell("held", token=token)
    child.tell("reveal", token=token)

    got = successor.ask("acquire", timeout=20.0)

    kept = child.answer()
    assert kept.ended - kept.began >= 2 * SHORT
    assert child.answer().got is False
    assert child.answer().error == "LeaseLost"
    assert got.ended < kept.ended or got.got  # somebody else has it
    eventually(lambda: said_to_be_lost(child, token) == 1)
    assert child.do("release", token=token) is False
    assert successor.do("held", token=got.got["token"])


# -- another file, or none -----------------------------------------------------------------------------------------


def remove(path: Path, *endings: str) -> None:
    for ending in endings:
        path.with_name(path.name + ending).unlink(missing_ok=True)


EVERYTHING = ("", "-wal", "-shm", ".alive")


@pytest.mark.parametrize("endings", [("",), ("", "-wal", "-shm"), EVERYTHING], ids=["the file", "with log", "all"])
def test_a_file_that_was_removed_is_noticed_its_leases_are_lost_and_a_new_one_is_used(
    processes: Family, path: Path, driven: DrivenTime, endings: tuple[str, ...]
) -> None:
    holders = [opened(processes, path, keys(2), ttl=LONG, clock=driven.file) for _ in range(2)]
    tokens = [holder.do("acquire")["token"] for holder in holders]

    remove(path, *endings)
    driven.let_pass(LONG / 2)

    for holder, token in zip(holders, tokens, strict=True):
        eventually(lambda holder=holder, token=token: said_to_be_lost(holder, token) == 1)  # type: ignore[misc]
        assert holder.do("held", token=token) is False
        assert holder.do("release", token=token) is False
    new = [holder.do("acquire", timeout=20.0) for holder in holders]
    assert sorted(got["name"] for got in new) == ["key-1", "key-2"]
    assert holders[0].ask("acquire", timeout=0.0).error == "NoCredentialAvailable"
    assert sorted(rows(path, "select name, pid from held")) == sorted(
        (got["name"], holder.pid) for got, holder in zip(new, holders, strict=True)
    )
    for got, holder in zip(new, holders, strict=True):
        assert holder.do("reveal", token=got["token"])
        assert holder.do("release", token=got["token"])
    assert sound(path) == "ok"


def test_a_file_that_was_replaced_by_another_store_is_noticed_and_that_one_is_used(
    processes: Family, path: Path, driven: DrivenTime
) -> None:
    other = path.with_name("other.sqlite")
    maker, made = holder_of(processes, other, *keys(1), ttl=LONG)
    maker.do("rate_limited", token=made, seconds=3600.0)
    maker.end("return")
    maker.wait()
    bytes_of(other)
    child, token = holder_of(processes, path, *keys(1), ttl=LONG, clock=driven.file)

    remove(path, "-wal", "-shm")
    other.replace(path)
    driven.let_pass(LONG / 2)

    eventually(lambda: said_to_be_lost(child, token) == 1)
    assert child.do("held", token=token) is False
    assert child.do("snapshot") == [{"name": "key-1", "state": "parked"}]
    assert sound(path) == "ok"


def test_a_file_that_was_replaced_by_something_else_ends_the_waiting_with_the_reason(
    processes: Family, path: Path
) -> None:
    ttl = 1.5
    child, token = holder_of(processes, path, *keys(1), ttl=ttl)
    child.begin("wait", "acquire", timeout=20.0)
    text = path.with_name("text")
    text.write_bytes(b"dear diary, " * 1000)

    remove(path, "-wal", "-shm")
    text.replace(path)
    replaced_at, worked = time.monotonic(), child.do("worked")

    answer = child.outcome("wait")
    assert answer.error == "NotAStore"
    assert answer.ended <= replaced_at + ttl + GRACE  # not only when its own time is over
    eventually(lambda: child.do("held", token=token) is False)
    assert child.ask("acquire", timeout=1.0).error == "NotAStore"
    assert child.do("worked") - worked < 0.5  # nobody tries all the time
    assert path.read_bytes() == b"dear diary, " * 1000


@pytest.fixture
def used(processes: Family, path: Path) -> bytes:
    """The bytes of a store that was in use, at *path*; nobody has it open."""
    child = opened(processes, path, keys(40, limits=TOKENS), ttl=LONG)
    child.do("acquire_all", slots=40, timeout=20.0)
    child.do("release_all")
    child.end("return")
    child.wait()
    return bytes_of(path)


def refused(path: Path, content: bytes) -> type[Exception] | None:
    """With what error a pool refuses to open a file of that content."""
    remove(path, "-wal", "-shm")
    path.write_bytes(content)
    try:
        CredentialCoordinator(SECRETS, store=path).close()
    except StoreError as error:
        found, said = type(error), str(error)
    else:
        return None
    assert str(path) in said
    return found


def refused_and_left_as_it_is(path: Path, content: bytes) -> type[Exception] | None:
    found = refused(path, content)
    assert path.read_bytes() == content or found is None
    return found


def test_a_pool_that_could_not_be_made_leaves_nothing_behind(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    gc.collect()
    recwarn.clear()  # of what other tests have left behind

    with pytest.raises(ValueError, match="already in the pool"):
        CredentialCoordinator([SECRETS[0], SECRETS[0]], store=path)

    gc.collect()

    assert [str(warning.message) for warning in recwarn] == []
    assert rows(path, "select * from sessions") == []


def test_what_is_no_store_is_refused_and_left_as_it_is(used: bytes, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("create table notes(text)")
        connection.commit()

    assert refused_and_left_as_it_is(path, b"dear diary, " * 1000) is NotAStore
    assert refused_and_left_as_it_is(path, b"hello") is NotAStore
    assert refused_and_left_as_it_is(path, other.read_bytes()) is NotAStore


def test_a_store_of_a_newer_format_is_refused_and_left_as_it_is(used: bytes, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("pragma user_version").fetchone()
        connection.execute(f"pragma user_version = {version + 1}")

    assert refused_and_left_as_it_is(path, path.read_bytes()) is StoreTooNew


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_store_that_was_cut_off_is_refused_and_left_as_it_is(used: bytes, path: Path, share: float) -> None:
    assert refused_and_left_as_it_is(path, used[: int(len(used) * share)]) is StoreDamaged


def test_a_store_with_a_page_that_was_wiped_is_refused_and_left_as_it_is(used: bytes, path: Path) -> None:
    size = int.from_bytes(used[16:18], "big")
    pages = range(size, len(used), size)
    unused = int.from_bytes(used[36:40], "big")

    found = Counter(
        refused_and_left_as_it_is(path, used[:start] + bytes(size) + used[start + size :]) for start in pages
    )

    assert found[StoreDamaged] >= len(pages) - unused > 8
    assert found.keys() <= {StoreDamaged, None}, found


def test_whatever_bit_is_flipped_a_store_is_opened_or_refused_and_nothing_else_happens(used: bytes, path: Path) -> None:
    """SQLite keeps no checksums, so that not every flipped bit can be known; but none is a surprise to the caller."""
    dice = random.Random(6)
    bits = [*range(18 * 8, 28 * 8), *(dice.randrange(len(used) * 8) for _ in range(trials(100)))]
    found: Counter[type[Exception] | None] = Counter()
    for bit in bits:
        flipped = bytearray(used)
        flipped[bit // 8] ^= 1 << bit % 8
        found[refused(path, bytes(flipped))] += 1

    assert found[StoreDamaged] > 0
    assert found[NotAStore] > 0
    assert found.keys() <= {None, StoreDamaged, NotAStore, StoreTooNew, StoreUnavailable}, found
