"""The fair queue alone, with simulated processes of a few lines each, in event-driven time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from agentos.stores.process_fairness import (
    DECLINED,
    NOTIFY_TIMEOUT,
    StoreSession,
    charge,
    encode_wanted,
    next_to_notify,
    sessions_ahead,
)

NEVER = float("inf")
SOON = 0.001  # within which a process comes that was called
Chance = Callable[[], float]


class Process:
    """Wants one slot after the other, of *keys*, and holds each for as long as *holding* says."""

    def __init__(
        self, name: str, keys: Iterable[int] = (1,), *, weight: float = 1.0, holding: Chance = lambda: 1.0
    ) -> None:
        self.me = StoreSession(name, NEVER, weight)
        self.keys = tuple(keys)
        self.holding = holding
        self.comes = SOON  # after being called; NEVER: it is stopped
        self.can_use = True
        self.hungry = False


class Machine:
    """Keys, processes, and what a store does at each step. Every refusal is checked, and every moment a key is free."""

    def __init__(self, processes: Iterable[Process], slots: dict[int, int] | None = None) -> None:
        self.processes = list(processes)
        self.free = dict(slots or {1: 1})
        self.now = 0.0
        self.served = 0.0
        self.leases: list[tuple[float, str, int]] = []  # when, who, of which key
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    @property
    def shares(self) -> Counter[str]:
        return Counter(name for _, name, _ in self.leases)

    def at(self, when: float, act: Callable[[], None]) -> None:
        if when < NEVER:
            heapq.heappush(self._events, (when, next(self._order), act))

    def run(self, until: float) -> None:
        calm_until = self.now
        while self._events and self._events[0][0] <= until:
            self.now, number, act = heapq.heappop(self._events)
            assert number < 1000 + 1000 * self.now, f"they keep each other busy since {calm_until}"
            act()
        self.now = until

    # -- what a process does --------------------------------------------------------------------------------------

    def start(self, *processes: Process) -> None:
        for process in processes or self.processes:
            process.hungry = True
            self.come(process)

    def stop(self, process: Process) -> None:
        process.hungry = False
        process.me.waiting_since = process.me.notified_at = None

    def come(self, process: Process) -> None:
        """It is awake, and asks for whatever is free."""
        if not process.hungry or process.comes == NEVER:
            return
        me = process.me
        called, me.notified_at = me.notified_at is not None, DECLINED if me.notified_at is not None else None
        if process.can_use:
            for key in process.keys:
                while self.free[key]:
                    not_before = self._ask(process, key)
                    if not_before is not None:
                        self.at(not_before, lambda: self.come(process))
                        break
        if me.waiting_since is None:
            me.waiting_since, me.served = self.now, max(me.served, self.served)
            me.wanted = encode_wanted(process.keys)
        elif called and me.notified_at == DECLINED:
            self._call(min(self._not_called(), key=StoreSession.order, default=None))

    def _not_called(self) -> list[StoreSession]:
        return [p.me for p in self.processes if p.me.waiting_since is not None and p.me.notified_at is None]

    def _ask(self, process: Process, key: int) -> float | None:
        """Take a slot of a key that is free; or, if it is somebody else's turn, when to ask again."""
        me = process.me
        others = [each.me for each in self.processes if each is not process]
        contended = any(other.waiting_since is not None for other in others)
        if contended:
            ahead = sessions_ahead(me, others, key, self.served, self.now)
            if len(ahead) >= sum(self.free[each] for each in process.keys):
                first = min(ahead, key=StoreSession.order)
                assert me.waiting_since is None or first.order() < me.order(), "the first in line was refused"
                me.notified_at = None
                self._call(first)
                assert first.notified_at is not None
                return first.notified_at + NOTIFY_TIMEOUT
            self.served = charge(me, self.served)
        me.waiting_since, me.notified_at = self.now, None
        self.free[key] -= 1
        self.leases.append((self.now, me.id, key))
        self.at(self.now + process.holding(), lambda: self._give_back(process, key))
        return None

    def _give_back(self, process: Process, key: int) -> None:
        self.free[key] += 1
        first = next_to_notify((each.me for each in self.processes), key, self.now)
        if first is not process.me:
            self._call(first)
        self.come(process)

    def _call(self, session: StoreSession | None) -> None:
        if session is not None and session.can_be_notified():
            session.notified_at = self.now
            process = next(each for each in self.processes if each.me is session)
            self.at(self.now + process.comes, lambda: self.come(process))


def chances(luck: random.Random, *between: float) -> Chance:
    return lambda: luck.uniform(*between)


def idle_time(machine: Machine) -> list[float]:
    """How long the one key lay there between two leases of one second each."""
    instants = [at for at, _, _ in machine.leases]
    return [later - at - 1.0 for at, later in itertools.pairwise(instants)]


# -- shares -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [1, 2, 5])
def test_shares_are_in_proportion_to_weight_and_nobody_starves(keys: int) -> None:
    """What two of them have had, divided by their weights, differs at no moment by more than a lease of each.

    Or two, where several slots can be free at once: then those who come second need not wait for the first.
    """
    for number in range(12):
        luck = random.Random(number)
        weights = {f"p{n}": luck.choice((0.5, 1.0, 2.0, 4.0, 8.0)) for n in range(luck.randint(keys + 1, keys + 8))}
        names = range(1, keys + 1)
        hold = chances(luck, 0.1, 2.0)
        machine = Machine(
            [Process(name, names, weight=weight, holding=hold) for name, weight in weights.items()],
            {key: luck.randint(1, 2) for key in names},
        )
        machine.start()
        alone = len(machine.leases)  # what the first of them took, when nobody waited

        machine.run(150.0)

        had = dict.fromkeys(weights, 0.0)
        for _, name, _ in machine.leases[alone:]:
            had[name] += 1 / weights[name]
            ahead, behind = max(had, key=had.__getitem__), min(had, key=had.__getitem__)
            leases_each = 1 if alone == 1 else 2
            assert had[ahead] - had[behind] <= leases_each * (1 / weights[ahead] + 1 / weights[behind]), number
        assert len(machine.leases) > 100 * alone


def test_shares_are_of_leases_however_long_each_is_held() -> None:
    luck = random.Random(1)
    quick, slow = Process("quick", holding=chances(luck, 0.01, 0.02)), Process("slow", holding=chances(luck, 1.0, 2.0))
    machine = Machine([quick, slow])
    machine.start()

    machine.run(200.0)

    assert abs(machine.shares["quick"] - machine.shares["slow"]) <= 1


def test_one_that_was_idle_saved_nothing_up() -> None:
    early, late = Process("early"), Process("late")
    machine = Machine([early, late, Process("third")])
    machine.start(early, machine.processes[2])
    machine.run(100.0)
    before = machine.shares.copy()

    machine.start(late)
    machine.run(130.0)

    since = machine.shares - before
    assert max(since.values()) - min(since.values()) <= 1, since


def test_one_that_was_alone_owes_nothing() -> None:
    """What it had while nobody waited was nobody else's."""
    alone, late = Process("alone"), Process("late")
    machine = Machine([alone, late])
    machine.start(alone)
    machine.run(100.0)
    before = machine.shares.copy()

    machine.start(late)
    machine.run(120.0)

    since = machine.shares - before
    assert abs(since["alone"] - since["late"]) <= 1, since


def test_one_that_comes_and_goes_is_not_ahead_of_those_who_stay() -> None:
    visitor, stayer = Process("visitor"), Process("stayer")
    machine = Machine([visitor, stayer])
    machine.start(stayer)
    for round_ in range(40):
        machine.start(visitor)
        machine.run(round_ * 5 + 3.0)
        machine.stop(visitor)
        machine.run(round_ * 5 + 5.0)

    assert machine.shares["stayer"] >= machine.shares["visitor"]


# -- those who do not come ----------------------------------------------------------------------------------------


def test_one_that_never_comes_when_called_costs_the_others_the_patience_once() -> None:
    stopped, others = Process("stopped"), [Process("a"), Process("b")]
    machine = Machine([stopped, *others])
    machine.start()
    machine.run(10.5)
    stopped.comes = NEVER
    before = machine.shares.copy()

    machine.run(60.5)

    waits = idle_time(machine)
    assert sum(wait > SOON + 1e-9 for wait in waits) == 1
    assert max(waits) <= NOTIFY_TIMEOUT + SOON + 1e-9
    since = machine.shares - before
    assert since["stopped"] <= 1
    assert abs(since["a"] - since["b"]) <= 1


def test_one_that_was_stopped_and_goes_on_has_its_share_again() -> None:
    stopped, other = Process("stopped"), Process("other")
    machine = Machine([stopped, other])
    machine.start()
    machine.run(10.5)
    stopped.comes = NEVER
    machine.run(50.5)
    before = machine.shares.copy()

    stopped.comes = SOON
    machine.come(stopped)
    machine.run(90.5)

    since = machine.shares - before
    assert abs(since["stopped"] - since["other"]) <= 1, since


def test_one_that_passes_is_called_and_not_waited_for() -> None:
    picky, others = Process("picky"), [Process("a"), Process("b")]
    picky.can_use = False
    machine = Machine([picky, *others])
    machine.start()
    machine.run(60.0)
    assert max(idle_time(machine)) <= 2 * SOON + 1e-9  # it is asked, then the next; never the patience
    assert abs(machine.shares["a"] - machine.shares["b"]) <= 1

    picky.can_use = True
    machine.run(63.0)

    assert machine.shares["picky"] >= 1


# -- what holds at any time -----------------------------------------------------------------------------------------


def test_the_first_of_those_who_want_a_key_is_never_refused_it_and_no_key_lies_about() -> None:
    """Processes that want different keys, come, go, stand still and pass; ``Machine`` checks every refusal."""
    for number in range(60):
        luck = random.Random(number)
        keys = dict.fromkeys(range(1, luck.randint(2, 4) + 1), 1)
        processes = [
            Process(
                f"p{n}",
                sorted(luck.sample(sorted(keys), luck.randint(1, 2))),
                weight=luck.choice((1.0, 1.0, 3.0)),
                holding=chances(luck, 0.05, 3.0),
            )
            for n in range(luck.randint(3, 8))
        ]
        machine = Machine(processes, keys)
        for _ in range(60):
            process = luck.choice(processes)
            if process.hungry and luck.random() < 0.3:
                machine.stop(process)
            elif process.hungry and luck.random() < 0.3:
                process.can_use = not process.can_use
            else:
                machine.start(process)
            machine.run(machine.now + luck.choice((0.01, 0.5, 2.0)))
        for process in processes:
            process.can_use = True
            machine.start(process)

        machine.run(machine.now + 2 * NOTIFY_TIMEOUT + 4.0)

        wanted = {key for process in processes for key in process.keys}
        assert [key for key in wanted if machine.free[key]] == [], number


def test_of_two_that_ask_for_one_key_one_gets_it_whatever_others_did_elsewhere() -> None:
    """Each was in line before others, at another key, were served more often than both."""
    first = StoreSession("first", NEVER, served=0.0, waiting_since=1.0, wanted=encode_wanted([1]))
    second = StoreSession("second", NEVER, served=5.0, waiting_since=2.0, wanted=encode_wanted([1]))

    assert sessions_ahead(first, [second], 1, served=9.0, now=3.0) == []
    assert sessions_ahead(second, [first], 1, served=9.0, now=3.0) == [first]


def test_a_newcomer_is_behind_those_who_wait() -> None:
    waits = StoreSession("waits", NEVER, served=5.0, waiting_since=1.0)
    newcomer = StoreSession("newcomer", NEVER, served=0.0)

    assert sessions_ahead(newcomer, [waits], 1, served=5.0, now=2.0) == [waits]


def test_only_those_who_want_the_key_are_in_the_way_or_called() -> None:
    elsewhere = StoreSession("elsewhere", NEVER, served=0.0, waiting_since=1.0, wanted=encode_wanted([11, 2]))
    me = StoreSession("me", NEVER, served=9.0, waiting_since=2.0)

    assert sessions_ahead(me, [elsewhere], 1, served=9.0, now=3.0) == []
    assert next_to_notify([elsewhere], 1, now=3.0) is None
    assert next_to_notify([elsewhere, me], 1, now=3.0) is me
    assert next_to_notify([elsewhere, me], 11, now=3.0) is elsewhere


def test_one_that_was_called_and_has_not_come_yet_is_not_called_for_the_next_key() -> None:
    called = StoreSession("called", NEVER, served=0.0, waiting_since=1.0, notified_at=2.0)
    next_one = StoreSession("next", NEVER, served=5.0, waiting_since=1.0)

    assert next_to_notify([called, next_one], 2, now=3.0) is next_one
    assert next_to_notify([called], 2, now=3.0) is None


def test_one_that_can_start_nothing_yet_is_neither_waited_for_nor_called() -> None:
    idle = StoreSession("idle", NEVER, served=0.0, waiting_since=1.0, idle_until=60.0)
    me = StoreSession("me", NEVER, served=9.0, waiting_since=2.0)

    assert sessions_ahead(me, [idle], 1, served=9.0, now=59.0) == []
    assert next_to_notify([idle], 1, now=59.0) is None
    assert sessions_ahead(me, [idle], 1, served=9.0, now=60.0) == [idle]
    assert next_to_notify([idle], 1, now=60.0) is idle
