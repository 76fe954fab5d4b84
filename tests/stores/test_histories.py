"""The checkers of histories accept every history of a correct store, and reject every one with a planted fault."""

from __future__ import annotations

import functools
import heapq
import itertools
import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from .histories import (
    NEVER,
    TRIGGERS,
    History,
    Kind,
    Operation,
    Recorder,
    StoreEvent,
    from_lines,
    l1_by_store_order,
    linearizable,
    read,
    store_order,
    to_lines,
    whole,
)

# A correct store.


@dataclass
class Simulated:
    """A correct store of some credentials in virtual time, and what its processes recorded."""

    slots: dict[str, int]
    operations: list[Operation] = field(default_factory=list)
    may_expire: dict[int, float] = field(default_factory=dict)
    order: list[StoreEvent] = field(default_factory=list)

    @property
    def history(self) -> History:
        return History(sorted(self.operations, key=lambda op: op.invoked_at), self.may_expire)


@dataclass
class Process:
    label: str
    free_at: float
    held: list[tuple[int, str]] = field(default_factory=list)  # as far as it knows
    past: list[tuple[int, str]] = field(default_factory=list)


class Store:
    def __init__(self, rng: random.Random, made: Simulated, ttl: float) -> None:
        self.rng, self.made, self.ttl = rng, made, ttl
        self.in_force: dict[int, tuple[str, str, float]] = {}  # token: credential, session, expires at
        self.token = 0

    def grant(self, credential: str, session: str, now: float) -> int | None:
        for token, (name, _, expires_at) in list(self.in_force.items()):
            if name == credential and expires_at <= now:
                self.end(token)
        taken = sum(name == credential for name, _, _ in self.in_force.values())
        if taken == self.made.slots[credential] or self.rng.random() < 0.1:
            return None
        self.token += self.rng.randint(2, 4)  # gaps, as other credentials and roll-backs leave them
        self.in_force[self.token] = (credential, session, now + self.ttl)
        self._note("granted", self.token, credential, session)
        return self.token

    def finds(self, token: int, now: float) -> bool:
        """Return whether the lease is in force; an expired one may be removed at any moment."""
        if token in self.in_force and self.in_force[token][2] <= now and self.rng.random() < 0.5:
            self.end(token)
        return token in self.in_force

    def renew(self, token: int, now: float) -> None:
        credential, session, _ = self.in_force[token]
        self.in_force[token] = (credential, session, now + self.ttl)

    def end(self, token: int) -> None:
        credential, session, _ = self.in_force.pop(token)
        self._note("ended", token, credential, session)

    def _note(self, op: str, token: int, credential: str, session: str) -> None:
        self.made.order.extend(store_order([(len(self.made.order), op, token, 0, session)], {0: credential}))


def simulated(seed: int, count: int = 200, processes: int = 16, credentials: int = 1) -> Simulated:
    """Return the history of *processes* at a correct store, with *count* operations."""
    rng = random.Random(seed)
    made = Simulated({f"key-{i}": rng.randint(1, 3) for i in range(credentials)})
    latency = rng.choice([0.02, 0.2, 1.0])
    rest = rng.choice([1.0, 10.0, 30.0])  # between two requests: with 1 nearly all are refused, with 30 few
    ttl = rng.choice([NEVER, 3.0, 8.0])
    mortal = 0.03 if ttl < NEVER else 0.0  # without an end of leases each kill would take a slot for ever
    store = Store(rng, made, ttl)
    labels = (f"p{i}" for i in itertools.count())
    due: list[tuple[float, int, Process, Operation]] = []
    number = itertools.count()

    def plan(process: Process) -> None:
        pause = 2 * ttl if ttl < NEVER and rng.random() < 0.05 else 0.0
        invoked_at = process.free_at + pause + rng.expovariate(1.0 if process.held else 1 / rest)
        kind: Kind = "acquire"
        token, credential = None, rng.choice(list(made.slots))
        if process.past and rng.random() < 0.1:
            kind = rng.choice(["release", "renew"])
            token, credential = rng.choice(process.past)
        elif process.held and rng.random() < 0.9:
            kind = rng.choice(["release", "renew"])
            token, credential = rng.choice(process.held)
        op = Operation(process.label, kind, credential, token, invoked_at)
        heapq.heappush(due, (invoked_at + rng.expovariate(1 / latency), next(number), process, op))

    for _ in range(processes):
        plan(Process(next(labels), 0.0))
    while len(made.operations) < count:
        now, _, process, op = heapq.heappop(due)
        killed = rng.random() < mortal
        returned_at = now + rng.expovariate(1 / latency)
        credential = op.credential
        assert credential is not None
        if killed and rng.random() < 0.5:
            pass  # before it reached the store
        elif op.kind == "acquire":
            token = store.grant(credential, process.label, now)
            if not killed:
                op = replace(op, token=token, answer=token is not None, returned_at=returned_at)
                if token is not None:
                    process.held.append((token, credential))
                    made.may_expire[token] = op.invoked_at + ttl
        else:
            assert op.token is not None
            found = store.finds(op.token, now)
            if found:
                (store.renew(op.token, now) if op.kind == "renew" else store.end(op.token))
            if not killed:
                if found and op.kind == "renew":
                    made.may_expire[op.token] = op.invoked_at + ttl
                elif (op.token, credential) in process.held:
                    process.held.remove((op.token, credential))
                    process.past.append((op.token, credential))
                op = replace(op, answer=found, returned_at=returned_at)
        made.operations.append(op)
        process.free_at = returned_at
        plan(Process(next(labels), returned_at) if killed else process)
    if ttl == NEVER:
        made.may_expire.clear()
    return made


@functools.cache
def recordings() -> list[Simulated]:
    return [simulated(seed) for seed in range(250)]


def only(made: Simulated) -> int:
    (slots,) = made.slots.values()
    return slots


# Where a fault is real.


@dataclass(frozen=True)
class FullMoment:
    """Some time in which all slots were taken, in every order of the operations that is true to real time.

    Each of the leases *sure* had been returned to its process when this began, and when it was over none had been
    asked to be given back, nor could have expired. So whatever the order, all of them are in force all through it.
    """

    since: float
    until: float
    sure: frozenset[int]

    def operation(self, kind: Kind, token: int, answer: bool) -> Operation:
        return Operation("planted", kind, "key-0", token, self.since, self.until, answer)


def full_moments(made: Simulated) -> Iterator[FullMoment]:
    """Those between two neighbours among all instants of the history, made a little smaller."""
    granted_by, ends_from = {}, dict(made.may_expire)
    for op in made.operations:
        if op.token is None:
            continue
        if op.kind == "acquire":
            granted_by[op.token] = op.until
        if op.kind == "release" and op.answer is not False:
            ends_from[op.token] = (
                min(op.invoked_at, ends_from.get(op.token, NEVER)) if op.answer is None else op.invoked_at
            )
    instants = {op.invoked_at for op in made.operations} | {op.until for op in made.operations if op.until < NEVER}
    for since, until in itertools.pairwise(sorted(instants | set(made.may_expire.values()))):
        sure = {t for t, at in granted_by.items() if at <= since and until <= ends_from.get(t, NEVER)}
        if len(sure) == only(made):
            third = (until - since) / 3
            if since < since + third < until - third < until:
                yield FullMoment(since + third, until - third, frozenset(sure))


@functools.cache
def moments() -> list[tuple[Simulated, list[FullMoment]]]:
    return [(made, found) for made in recordings() if (found := list(full_moments(made)))]


def granted_before(made: Simulated, instant: float) -> list[int]:
    return [op.token for op in made.operations if op.kind == "acquire" and op.token is not None and op.until < instant]


def with_operation(made: Simulated, op: Operation) -> History:
    return replace(made.history, operations=[*made.operations, op])


def renamed(history: History, names: dict[int, int]) -> History:
    operations = [
        op if op.token is None else replace(op, token=names.get(op.token, op.token)) for op in history.operations
    ]
    return History(operations, {names.get(token, token): at for token, at in history.may_expire.items()})


def all_rejected(planted: Iterator[tuple[History, int]], at_least: int) -> None:
    """Each of them, and there are enough of them for that to mean something."""
    count = 0
    for history, slots in planted:
        found = linearizable(history, slots)
        assert found is not None, f"planted fault {count} escaped"
        count += 1
    assert count >= at_least


# Good histories.


def test_every_history_of_a_correct_store_is_accepted() -> None:
    for made in recordings():
        assert linearizable(made.history, only(made)) is None
        assert l1_by_store_order(made.order, made.slots) is None


def test_every_short_history_of_a_correct_store_is_accepted() -> None:
    """Thousands of them, with more of the odd beginnings and ends a long one has two of."""
    for seed in range(3000):
        made = simulated(seed, count=random.Random(seed).randint(1, 40), processes=random.Random(~seed).randint(1, 16))
        assert linearizable(made.history, only(made)) is None
        assert l1_by_store_order(made.order, made.slots) is None


def test_every_recording_of_several_credentials_agrees_with_its_stores_order() -> None:
    for seed in range(100):
        made = simulated(seed, credentials=3)
        assert whole(made.history, made.slots, made.order) is None


def test_the_good_histories_have_all_there_is_to_get_wrong() -> None:
    """Grants, refusals, stale answers, kills in every operation, expired leases: else their acceptance says little."""
    seen = {(op.kind, op.answer) for made in recordings() for op in made.operations}
    assert seen == set(itertools.product(("acquire", "release", "renew"), (True, False, None)))
    released = [{op.token for op in made.operations if op.kind == "release"} for made in recordings()]
    expired = [
        {event.token for event in made.order if event.op == "ended"} - given_back
        for made, given_back in zip(recordings(), released, strict=True)
    ]
    assert sum(map(len, expired)) > 300
    assert {only(made) for made in recordings()} == {1, 2, 3}
    assert len(moments()) > 200


# Planted faults, one kind a test.


def test_a_grant_while_all_slots_are_in_force_is_rejected() -> None:
    """None can escape: the acquire lies within a full moment, so wherever in it the grant is put, n others are in
    force. A fault seeded blindly can escape: it may never fire, or an end that was under way may as well have come
    first, and then no process can tell. Only the store's own order shows that one, and ``l1_by_store_order`` reads it.

    That it is this fault and no other is shown by one more slot, with which each of them is accepted.
    """
    planted = []
    for made, found in moments():
        for moment in found[:: len(found) // 4 + 1]:
            token = max(granted_before(made, moment.since)) + 1
            planted.append((with_operation(made, moment.operation("acquire", token, True)), only(made)))
    all_rejected(iter(planted), at_least=500)
    for history, slots in planted:
        assert linearizable(history, slots + 1) is None


def test_a_token_granted_twice_is_rejected() -> None:
    """None can escape: no two grants of one order have the same token, wherever they stand."""

    def planted() -> Iterator[tuple[History, int]]:
        for made in recordings():
            grants = [op for op in made.history.operations if op.kind == "acquire" and op.answer]
            for before, after in list(itertools.pairwise(grants))[::4]:
                again = replace(after, token=before.token)
                others = [op for op in made.operations if op is not after]
                yield replace(made.history, operations=[*others, again]), only(made)

    all_rejected(planted(), at_least=500)


def test_a_token_that_goes_back_is_rejected() -> None:
    """None can escape: the grant of the larger token returned before that of the smaller one was invoked.

    The two trade their tokens in all operations, so that nothing else is wrong with either.
    """

    def planted() -> Iterator[tuple[History, int]]:
        for made in recordings():
            grants = [op for op in made.history.operations if op.kind == "acquire" and op.answer]
            for one, other in list(itertools.pairwise(grants))[::12]:
                if one.until < other.invoked_at:
                    assert one.token is not None
                    assert other.token is not None
                    yield renamed(made.history, {one.token: other.token, other.token: one.token}), only(made)

    all_rejected(planted(), at_least=300)


def stale(made: Simulated, moment: FullMoment) -> list[int]:
    """Leases that are over by then, as n others are in force."""
    return [token for token in granted_before(made, moment.since) if token not in moment.sure]


def planted_on_stale(kind: Kind, given_back: bool) -> Iterator[tuple[History, int]]:
    for made, found in moments():
        returned = {op.token for op in made.operations if op.kind == "release" and op.answer is not False}
        for moment in found[:: len(found) // 4 + 1]:
            for token in stale(made, moment)[-2:]:
                if (token in returned) is given_back:
                    yield with_operation(made, moment.operation(kind, token, True)), only(made)


@pytest.mark.parametrize("given_back", [True, False], ids=["given back before", "expired and taken over"])
def test_a_release_of_a_stale_token_answered_true_is_rejected(given_back: bool) -> None:
    """None can escape: the token would be in force in a full moment, besides n others."""
    all_rejected(planted_on_stale("release", given_back), at_least=100)


@pytest.mark.parametrize("given_back", [True, False], ids=["given back before", "expired and taken over"])
def test_a_renewal_answered_true_after_the_lease_was_taken_over_is_rejected(given_back: bool) -> None:
    """None can escape: the token would be in force in a full moment, besides n others."""
    all_rejected(planted_on_stale("renew", given_back), at_least=100)


@pytest.mark.parametrize("kind", ["release", "renew"])
def test_a_current_token_answered_false_is_rejected(kind: Kind) -> None:
    """None can escape: the token is in force all through the moment, whatever the order."""

    def planted() -> Iterator[tuple[History, int]]:
        for made, found in moments():
            for moment in found[:: len(found) // 4 + 1]:
                yield with_operation(made, moment.operation(kind, min(moment.sure), False)), only(made)

    all_rejected(planted(), at_least=500)


def test_an_expiry_before_its_instant_is_rejected() -> None:
    """None can escape: the lease must be in force until after a full moment, in which n others are.

    Only its instant is changed: it did expire, later than it might have, and now that is earlier than it may.
    """

    def planted() -> Iterator[tuple[History, int]]:
        for made, found in moments():
            returned = {op.token for op in made.operations if op.kind == "release" and op.answer is not False}
            for moment in found[:: len(found) // 4 + 1]:
                for token in stale(made, moment)[-2:]:
                    if token not in returned:
                        early = {**made.may_expire, token: moment.until + 1.0}
                        yield replace(made.history, may_expire=early), only(made)

    all_rejected(planted(), at_least=100)


def test_a_token_in_force_that_nobody_was_granted_is_rejected() -> None:
    history = History([Operation("p0", "renew", "key-0", 7, 1.0, 2.0, True)])

    assert linearizable(history, 1) == (
        "lease 7 was found in force by a renew from 1.000000 to 2.000000 by p0, but nobody was granted it"
    )


def test_an_acquire_that_never_returned_explains_a_token_nobody_was_granted() -> None:
    killed = Operation("p1", "acquire", "key-0", None, 0.0)
    found = Operation("p0", "renew", "key-0", 7, 1.0, 2.0, True)

    assert linearizable(History([killed, found]), 1) is None
    assert linearizable(History([replace(killed, invoked_at=3.0), found]), 1) is not None


def test_an_open_acquire_that_named_no_credential_may_have_got_any() -> None:
    killed = Operation("p1", "acquire", None, None, 0.0)
    found = Operation("p0", "renew", "key-0", 7, 1.0, 2.0, True)

    assert whole(History([killed, found]), {"key-0": 1}) is None
    assert whole(History([found]), {"key-0": 1}) is not None


def test_a_slot_lost_for_ever_is_no_fault_of_a_history() -> None:
    """A refusal is always right, as it may be another's turn. That slots come back is for tests of liveness."""
    for made in recordings()[:100]:
        end = max(op.invoked_at for op in made.operations) + 100.0
        refused = [Operation("p0", "acquire", "key-0", None, end + i, end + i + 0.5, False) for i in range(50)]
        history = replace(made.history, operations=[*made.operations, *refused])
        assert linearizable(history, only(made)) is None


# Faults in the store's own order.


def rejected_orders(plant: Callable[[list[StoreEvent], int], list[StoreEvent] | None]) -> int:
    """Return the number of orders with a planted fault; each of them is rejected."""
    count = 0
    for made in recordings()[:50]:
        for place in range(len(made.order)):
            order = plant(list(made.order), place)
            if order is not None:
                assert l1_by_store_order(order, made.slots) is not None
                count += 1
    return count


def test_one_lease_too_many_in_the_stores_order_is_reported() -> None:
    count = 0
    for made in recordings()[:100]:
        in_force = 0
        for place, event in enumerate(made.order):
            in_force += 1 if event.op == "granted" else -1
            if in_force == only(made):
                token = max(e.token for e in made.order[: place + 1]) + 1
                extra = replace(event, op="granted", token=token)
                order = [*made.order[: place + 1], extra, *made.order[place + 1 :]]
                assert l1_by_store_order(order, made.slots) is not None
                assert l1_by_store_order(order, {"key-0": only(made) + 1}) is None
                count += 1
    assert count > 300


def test_a_token_granted_twice_in_the_stores_order_is_reported() -> None:
    def plant(order: list[StoreEvent], place: int) -> list[StoreEvent] | None:
        if order[place].op == "ended":
            return [*order[: place + 1], replace(order[place], op="granted"), *order[place + 1 :]]
        return None

    assert rejected_orders(plant) > 500


def test_a_token_that_goes_back_in_the_stores_order_is_reported() -> None:
    def plant(order: list[StoreEvent], place: int) -> list[StoreEvent] | None:
        later = [event.token for event in order[place + 1 :] if event.op == "granted"]
        if order[place].op == "ended" or not later:
            return None
        swap = {order[place].token: later[0], later[0]: order[place].token}
        return [replace(event, token=swap.get(event.token, event.token)) for event in order]

    assert rejected_orders(plant) > 500


def test_an_end_without_a_grant_in_the_stores_order_is_reported() -> None:
    def plant(order: list[StoreEvent], place: int) -> list[StoreEvent] | None:
        token = order[place].token
        if order[place].op == "granted" and any(e.op == "ended" and e.token == token for e in order):
            return order[:place] + order[place + 1 :]
        return None

    assert rejected_orders(plant) > 500


def test_a_second_end_in_the_stores_order_is_reported() -> None:
    def plant(order: list[StoreEvent], place: int) -> list[StoreEvent] | None:
        return [*order, order[place]] if order[place].op == "ended" else None

    assert rejected_orders(plant) > 500


def test_two_grants_of_one_token_are_told_from_tokens_that_go_back() -> None:
    first, other = StoreEvent(1, "granted", 5, "key-0", "s1"), StoreEvent(2, "granted", 9, "key-1", "s2")

    again = l1_by_store_order([first, other, replace(first, seq=3)], {"key-0": 2, "key-1": 1})
    back = l1_by_store_order([first, other, replace(first, seq=3, token=7)], {"key-0": 2, "key-1": 1})

    assert again == "event 3: lease 5 of key-0 was granted to s1, but that token had been granted before"
    assert back == "event 3: lease 7 of key-0 was granted after lease 9"


def test_a_credential_nobody_knows_is_reported() -> None:
    order = [StoreEvent(1, "granted", 5, "key-9", "p0")]
    history = History([Operation("p0", "acquire", "key-9", 5, 1.0, 2.0, True)])

    assert l1_by_store_order(order, {"key-0": 1}) is not None
    assert whole(history, {"key-0": 1}) is not None


def test_an_end_for_another_session_is_reported() -> None:
    order = [StoreEvent(1, "granted", 5, "key-0", "s1"), StoreEvent(2, "ended", 5, "key-0", "s2")]

    assert l1_by_store_order(order, {"key-0": 1}) == (
        "event 2: lease 5 of key-0 ended for s2, but was key-0's, granted to s1"
    )


# Faults between a recording and the store's order.


def told(made: Simulated) -> list[Operation]:
    return [op for op in made.history.operations if op.kind == "acquire" and op.answer]


def test_a_grant_the_store_does_not_know_is_reported() -> None:
    for made in recordings()[:100]:
        for op in told(made)[::8]:
            order = [event for event in made.order if event.token != op.token]
            found = whole(made.history, made.slots, order)
            assert found is not None
            assert f"granted lease {op.token} " in found


def test_a_grant_the_store_gave_to_another_session_is_reported() -> None:
    for made in recordings()[:100]:
        for op in told(made)[:5]:
            order = [replace(e, session="another") if e.token == op.token else e for e in made.order]
            found = whole(made.history, made.slots, order)
            assert found is not None
            assert found.endswith("granted to another")


def test_a_release_answered_true_without_an_end_in_the_store_is_reported() -> None:
    count = 0
    for made in recordings()[:50]:
        for op in made.operations:
            if op.kind == "release" and op.answer:
                order = [e for e in made.order if (e.op, e.token) != ("ended", op.token)]
                plenty = {"key-0": len(order)}  # so that the lease that stays is not one too many
                found = whole(made.history, plenty, order)
                assert found is not None
                assert found.endswith("but in the store it did not end")
                count += 1
    assert count > 300


def test_a_lease_the_store_granted_and_nobody_was_told_of_is_reported() -> None:
    """The one kind of lost slot that shows: an acquire was refused, and the lease is there."""
    count = 0
    for made in recordings()[:100]:
        for op in told(made)[:5]:
            others = [other for other in made.operations if other.token != op.token]
            refused = replace(op, token=None, answer=False)
            found = whole(History([*others, refused], made.may_expire), made.slots, made.order)
            killed = any(o.process == op.process and o.answer is None and o.token is None for o in made.operations)
            if not killed:  # else its open acquire may have got it, and who is to say
                assert found is not None
                assert found.endswith("which was not told of it")
                count += 1
    assert count > 300


def test_an_end_in_the_store_that_nobody_asked_for_is_reported() -> None:
    order = [StoreEvent(1, "granted", 5, "key-0", "p0"), StoreEvent(2, "ended", 5, "key-0", "p0")]
    granted = Operation("p0", "acquire", "key-0", 5, 1.0, 2.0, True)

    assert whole(History([granted], {5: 9.0}), {"key-0": 1}, order) is None
    assert whole(History([granted]), {"key-0": 1}, order) == (
        "event 2 (lease 5 ended): nobody gave it back, and it could not expire"
    )


def test_an_order_of_the_store_that_real_time_forbids_is_reported() -> None:
    """To the processes nothing is wrong: there are two slots. But the store ended lease 5 before 8, so too early."""
    order = [
        StoreEvent(1, "granted", 5, "key-0", "p0"),
        StoreEvent(2, "ended", 5, "key-0", "p0"),
        StoreEvent(3, "granted", 8, "key-0", "p1"),
    ]
    history = History(
        [
            Operation("p0", "acquire", "key-0", 5, 1.0, 2.0, True),
            Operation("p1", "acquire", "key-0", 8, 3.0, 4.0, True),
        ],
        {5: 6.0},
    )

    assert whole(history, {"key-0": 2}) is None
    assert whole(history, {"key-0": 2}, order) == (
        "event 3 (lease 8 granted) was over by 4.000000, "
        "yet follows event 2 (lease 5 ended), which was not before 6.000000"
    )


def test_a_fault_of_one_credential_among_several_is_found_and_named() -> None:
    for seed in range(50):
        made = simulated(seed, credentials=3)
        op = next(op for op in reversed(told(made)) if op.credential == "key-1")
        again = replace(op, process="planted")
        found = whole(replace(made.history, operations=[*made.operations, again]), made.slots)
        assert found is not None
        assert found.startswith(f"key-1: lease {op.token} was granted twice")


# The same verdict as brute force.


def some_order_is_right(history: History, slots: int) -> bool:
    """Tries every order, one operation after the other; knows of the sequential store and of nothing else."""
    operations = [(op, op.invoked_at, op.until) for op in history.operations]
    expiries = [(token, at, NEVER) for token, at in history.may_expire.items()]
    mentioned = {op.token for op in history.operations if op.token is not None}

    def after(op: Operation | int, in_force: frozenset[int], last: float) -> Iterator[tuple[frozenset[int], float]]:
        """The states (leases in force, last token) that the operation may leave behind, if its answer is right."""
        if isinstance(op, int):
            if op in in_force:
                yield in_force - {op}, last
        elif op.kind == "acquire":
            if op.answer is False:
                yield in_force, last
            elif len(in_force) < slots:
                for token in mentioned if op.token is None else {op.token}:
                    if token > last:
                        yield in_force | {token}, float(token)
        elif op.answer is None or op.answer is (op.token in in_force):
            yield (in_force - {op.token} if op.kind == "release" else in_force), last

    def search(left: list[tuple[Operation | int, float, float]], in_force: frozenset[int], last: float) -> bool:
        if all(until == NEVER for _, _, until in left):
            return True
        first_return = min(until for _, _, until in left)
        for i, (op, invoked_at, _) in enumerate(left):
            if invoked_at <= first_return:
                rest = left[:i] + left[i + 1 :]
                if any(search(rest, *state) for state in after(op, in_force, last)):
                    return True
        return False

    return search([*operations, *expiries], frozenset(), 0.0)


def tiny(rng: random.Random) -> tuple[History, int]:
    """At most six operations at instants 0 to 11: a right order of them blurred into overlap, then perhaps spoilt."""
    slots, blur, token, operations = rng.randint(1, 2), rng.randint(0, 3), 0, []
    in_force: set[int] = set()
    may_expire = {t: float(rng.randint(0, 9)) for t in range(1, 5) if rng.random() < 0.3}
    for at in range(2, 2 + rng.randint(1, 6)):
        for expired in [t for t in in_force if may_expire.get(t, NEVER) <= at and rng.random() < 0.5]:
            in_force.remove(expired)
        kind: Kind = rng.choice(["acquire", "acquire", "release", "renew"])
        since, until = max(0, at - rng.randint(0, blur)), at + rng.randint(0, blur)
        if kind == "acquire":
            got = len(in_force) < slots and rng.random() < 0.9
            token += got
            in_force |= {token} if got else set()
            op = Operation("p", kind, "key-0", token if got else None, since, until, got)
        else:
            on = rng.randint(1, max(1, token))
            op = Operation("p", kind, "key-0", on, since, until, on in in_force)
            in_force -= {on} if kind == "release" else set()
        operations.append(op)
    for _ in range(rng.randint(0, 3)):
        i = rng.randrange(len(operations))
        operations[i] = spoilt(rng, operations[i])
    return History(operations, may_expire), slots


def spoilt(rng: random.Random, op: Operation) -> Operation:
    how = rng.randrange(4)
    if how == 0:
        since = rng.randint(0, 8)
        return replace(op, invoked_at=since, returned_at=None if op.answer is None else since + rng.randint(0, 3))
    if how == 1:
        return replace(op, answer=None, returned_at=None, token=None if op.kind == "acquire" else op.token)
    if op.token is not None and how == 2:
        return replace(op, token=rng.randint(1, 4))
    if op.kind == "acquire":
        return Operation("p", "acquire", "key-0", rng.randint(1, 4), op.invoked_at, op.invoked_at + 2, True)
    return replace(op, answer=not op.answer, returned_at=op.invoked_at + rng.randint(0, 3))


def test_the_verdict_is_that_of_trying_every_order() -> None:
    rng = random.Random(7)
    verdicts = {True: 0, False: 0}
    for number in range(8000):
        history, slots = tiny(rng)
        right = some_order_is_right(history, slots)
        found = linearizable(history, slots)
        assert (found is None) is right, f"history {number}, {slots} slots: {found}\n" + "\n".join(to_lines(history))
        verdicts[right] += 1
    assert min(verdicts.values()) > 2000


# Its cost.


def test_histories_of_two_hundred_operations_take_no_time() -> None:
    histories = [(made.history, only(made)) for made in recordings()]

    start = time.process_time()
    for history, slots in histories:
        linearizable(history, slots)
    took = time.process_time() - start

    assert took < len(histories) * 0.005  # of 50 ms each, a tenth; measured 0.08 ms


def test_twenty_thousand_operations_at_once_are_decided_without_a_search() -> None:
    """Every operation overlaps every other, which leaves a search 20000! orders, and one slot for all."""
    granted = [Operation("p", "acquire", "key-0", token, 0.0, 1.0, True) for token in range(1, 5001)]
    renewed = [replace(op, kind="renew") for op in granted]
    released = [replace(op, kind="release") for op in granted]
    missed = [replace(op, answer=False) for op in released]

    start = time.process_time()
    assert linearizable(History(released + missed + renewed + granted), 1) is None
    assert linearizable(History(released[1:] + missed + renewed + granted), 1) is not None
    took = time.process_time() - start

    assert took < 5.0  # measured 0.1 s


# Recordings.


def test_a_history_survives_its_lines() -> None:
    for made in recordings()[:50]:
        assert from_lines(to_lines(made.history)) == made.history


def test_a_torn_last_line_counts_as_not_written() -> None:
    history = History([Operation("p0", "acquire", "key-0", 5, 1.0, 2.0, True)])
    invoked, returned = to_lines(history)

    for cut in range(1, len(returned)):
        (op,) = from_lines([invoked, returned[:cut]]).operations
        assert (op.answer, op.returned_at, op.token) == (None, None, None)


def test_a_torn_line_that_is_not_the_last_is_refused() -> None:
    lines = to_lines(History([Operation("p0", "renew", "key-0", 5, 1.0, 2.0, False)]))

    with pytest.raises(ValueError, match="line 1 of 2"):
        from_lines([lines[0][:10], lines[1]])


def test_of_several_instants_a_lease_may_expire_from_the_latest_counts() -> None:
    lines = [json.dumps({"event": "may_expire", "token": 5, "at": at}) for at in (3.0, 9.0, 6.0)]

    assert from_lines(lines[:1], lines[1:]).may_expire == {5: 9.0}


def test_a_recorder_writes_what_is_read_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "p0", "p0")
    number = recorder.invoked("acquire", session="s0")
    recorder.returned(number, True, credential="key-0", token=5)
    recorder.may_expire(5, at=60.0)
    recorder.invoked("release", credential="key-0", token=5)  # and then it was killed
    recorder.close()

    history = read([tmp_path / "p0"])

    acquired, released = history.operations
    assert (acquired.kind, acquired.credential, acquired.token, acquired.answer) == ("acquire", "key-0", 5, True)
    assert acquired.owner == "s0"
    assert acquired.invoked_at <= acquired.until <= released.invoked_at
    assert (released.kind, released.token, released.answer, released.until) == ("release", 5, None, NEVER)
    assert history.may_expire == {5: 60.0}


def test_the_triggers_tell_the_stores_order() -> None:
    store = sqlite3.connect(":memory:")
    store.execute("CREATE TABLE leases(token INTEGER PRIMARY KEY, credential INTEGER, session TEXT, until REAL)")
    store.executescript(TRIGGERS)
    store.execute("INSERT INTO leases VALUES (4, 1, 's0', 60.0)")
    store.execute("UPDATE leases SET until = 120.0")
    store.execute("DELETE FROM leases WHERE token = 4")
    store.execute("INSERT INTO leases VALUES (6, 1, 's1', 60.0)")

    order = store_order(store.execute("SELECT seq, op, token, credential, session FROM history"), {1: "key-0"})
    store.close()

    assert order == [
        StoreEvent(1, "granted", 4, "key-0", "s0"),
        StoreEvent(2, "ended", 4, "key-0", "s0"),
        StoreEvent(3, "granted", 6, "key-0", "s1"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"returned_at": None},
        {"answer": None},
        {"returned_at": 0.5},
        {"token": None},
        {"returned_at": None, "answer": None},
        {"credential": None},
        {"kind": "renew", "token": None},
    ],
    ids=str,
)
def test_an_operation_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "process": "p0",
        "kind": "acquire",
        "credential": "key-0",
        "token": 5,
        "invoked_at": 1.0,
        "returned_at": 2.0,
        "answer": True,
    }

    with pytest.raises(ValueError):
        Operation(**{**fields, **wrong})  # type: ignore[arg-type]
