"""The scheduler and the naive scheduler get the same steps, and must never disagree."""

from __future__ import annotations

import os
import random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from agentos.runs.core.item_scheduler import ItemScheduler
from agentos.runs.core.records import Attempt, Item
from agentos.runs.core.states import FINAL, AttemptEnd, ItemStatus, Phase, Verdict

from .invariants import j2_counts_add_up
from .naive_scheduler import WAITING, NaiveBoard

STATE_IN = {
    "fresh": ItemStatus.PENDING,
    "again": ItemStatus.PENDING,
    "resting": ItemStatus.PENDING,
    "aside": ItemStatus.PENDING,
    "admitted": ItemStatus.PENDING,
    "stranded": ItemStatus.PENDING,
    "running": ItemStatus.RUNNING,
    "done": ItemStatus.DONE,
    "failed": ItemStatus.FAILED,
    "left": ItemStatus.INTERRUPTED,
}
QUOTAS = ["gold", "silver"]
MODELS = ["large", "small"]


class Story(RuleBasedStateMachine):
    """One step is one thing that happens. Hypothesis picks the luck of each step, and can leave steps out."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.begun: list[tuple[Attempt, bool]] = []  # every attempt, and whether it has come back
        self.moment = 0

    @initialize(luck=st.integers(0, 2**32 - 1))
    def first_items(self, luck: int) -> None:
        r = random.Random(luck)
        retries = r.choice([0, 1, 2, 5])
        self.last_token = r.choice([0, 0, 41])
        self.board = ItemScheduler(retries=retries, last_token=self.last_token)
        self.naive = NaiveBoard(retries, tokens=self.last_token)
        self.limits = r.random() < 0.4  # a story of limits: rows of twenty are rare otherwise
        self.restless = r.random() < 0.3  # an item comes to another quota each time
        self.items: list[Item] = []
        self.pull(r)

    @rule(luck=st.integers(0, 2**32 - 1))
    def step(self, luck: int) -> None:
        r = random.Random(luck)
        happening = r.choices(list(self.HAPPENINGS), weights=list(self.HAPPENINGS.values()))[0]
        getattr(self, happening)(r)

    HAPPENINGS: ClassVar[dict[str, int]] = {
        "pull": 4,
        "admit_and_begin": 40,
        "admit": 10,
        "begin": 16,
        "put_back": 3,
        "put_aside": 8,
        "bring_back": 6,
        "strand": 1,
        "refuse": 1,
        "come_back": 50,
        "come_back_again": 3,
        "struggle": 6,
        "give_up": 4,
        "time_passes": 40,
        "stop": 1,
        "end_of_input": 1,
    }

    # -- the two are told the same ----------------------------------------------------------------------------

    def pull(self, r: random.Random) -> None:
        if self.board.exhausted or len(self.items) > 40:
            return
        for _ in range(r.randint(1, 3 if self.limits else 6)):
            index = self.naive.pull().index
            self.items.append(Item(index, f"item-{index}", index))
            self.board.taken += 1
            self.board.fresh.append(self.items[-1])

    def admit(self, _r: random.Random) -> Item | None:
        item, expected = self.board.next_item(), self.naive.next_item()
        assert (None if item is None else item.index) == (None if expected is None else expected.index)
        return item

    def admit_and_begin(self, r: random.Random) -> None:
        item = self.admit(r)
        if item is not None:
            self.begin_it(item, r)

    def an_admitted(self, r: random.Random) -> Item | None:
        admitted = self.naive.in_place("admitted")
        return self.items[r.choice(admitted).index] if admitted else None

    def begin(self, r: random.Random) -> None:
        item = self.an_admitted(r)
        if item is not None:
            self.begin_it(item, r)

    def begin_it(self, item: Item, r: random.Random) -> None:
        if r.random() < 0.5:
            swapped = self.board.swap_for_earlier(item)
            assert swapped.index == self.naive.better(self.naive.items[item.index]).index
            item = swapped
        attempt = self.board.begin(item, f"grant-{item.index}", self.now)
        assert (attempt is not None) is self.naive.begin(self.naive.items[item.index], self.now)
        if attempt is not None:
            assert attempt.token == self.naive.tokens
            assert attempt.number == self.naive.items[item.index].attempts
            assert (attempt.grant, attempt.began_at, attempt.item) == (f"grant-{item.index}", self.now, item)
            self.begun.append((attempt, False))

    def put_back(self, r: random.Random) -> None:
        item = self.an_admitted(r)
        if item is not None:
            self.board.put_back(item)
            self.naive.items[item.index].place = "again"

    def put_aside(self, r: random.Random) -> None:
        item, model = self.an_admitted(r), r.choice(MODELS)
        if item is not None:
            self.moment += 1
            self.board.defer(item, model)
            self.naive.put_aside(self.naive.items[item.index], model, self.moment)

    def bring_back(self, r: random.Random) -> None:
        model, all_of_them = r.choice(MODELS), r.random() < 0.3
        self.board.resume_deferred(model, all_of_them)
        self.naive.bring_back(model, all_of_them)

    def strand(self, r: random.Random) -> None:
        item = self.an_admitted(r)
        if item is not None:
            self.board.mark_unservable(item)
            self.naive.items[item.index].place = "stranded"

    def refuse(self, r: random.Random) -> None:
        item = self.an_admitted(r)
        if item is not None:
            self.board.refuse(item)
            self.naive.final(self.naive.items[item.index], "failed", "", Verdict.FAILED)

    def come_back(self, r: random.Random) -> None:
        out = [place for place, (_, back) in enumerate(self.begun) if not back]
        if out:
            place = r.choice(out)
            self.begun[place] = (self.begun[place][0], True)
            self.finish(self.begun[place][0], r)

    def come_back_again(self, r: random.Random) -> None:
        """What has come back, or was given up, can change nothing any more."""
        if self.begun:
            attempt = r.choice(self.begun)[0]
            if attempt.token not in self.board.running:
                before = self.everything()
                assert self.finish(attempt, r) is Verdict.LATE
                assert self.everything() == before
                assert not self.board.abandon_attempt(attempt, failed=r.random() < 0.5)

    def struggle(self, r: random.Random) -> None:
        """An item that is limited again and again: rows of twenty would be rare otherwise."""
        for _ in range(r.randint(1, 8)):
            self.now += 60.0
            assert self.board.release_due(self.now) == self.naive.wake_due(self.now)
            before = len(self.begun)
            self.admit_and_begin(r)
            if len(self.begun) == before:
                return
            attempt = self.begun[-1][0]
            self.begun[-1] = (attempt, True)
            self.finish(attempt, r, AttemptEnd.LIMIT)

    def finish(self, attempt: Attempt, r: random.Random, ended: AttemptEnd | None = None) -> Verdict:
        odds = [1, 1, 1, 30, 1] if self.limits and attempt.item.index % 3 == 0 else [8, 2, 4, 4, 2]
        ways = [AttemptEnd.VALUE, AttemptEnd.ERROR, AttemptEnd.TRANSIENT, AttemptEnd.LIMIT, AttemptEnd.STOPPED]
        ended = ended or r.choices(ways, weights=odds)[0]
        quota, luck = r.choice(QUOTAS) if self.restless else QUOTAS[attempt.item.index % 2], r.random()
        item = self.naive.items[attempt.item.index]
        expected = self.naive.finish(item, attempt.token, ended, quota, self.now, luck)
        verdict = self.board.finish(attempt, ended, quota, self.now, luck)
        assert verdict is expected
        assert attempt.ended
        return verdict

    def give_up(self, r: random.Random) -> None:
        if self.begun:
            attempt, failed = r.choice(self.begun)[0], r.random() < 0.5
            item = self.naive.items[attempt.item.index]
            expected = self.naive.give_up(item, attempt.token, failed=failed)
            assert self.board.abandon_attempt(attempt, failed=failed) is expected

    def time_passes(self, r: random.Random) -> None:
        self.now += r.choice([0.0, 0.3, 1.0, 5.0, 60.0])
        assert self.board.release_due(self.now) == self.naive.wake_due(self.now)

    def stop(self, r: random.Random) -> None:
        if r.random() < 0.3:
            self.board.deadline = self.naive.deadline = self.now + r.choice([0.0, 10.0, 1000.0])
        elif r.random() < 0.4 and self.board.phase.value < Phase.FORCED.value:
            self.board.phase = self.naive.phase = Phase(self.board.phase.value + 1)

    def end_of_input(self, r: random.Random) -> None:
        if r.random() < 0.2:
            self.board.exhausted = self.naive.exhausted = True

    # -- and must agree ---------------------------------------------------------------------------------------

    def places(self) -> list[tuple[str, int]]:
        """Where the board has its items; those that are final and those with a request out it only counts."""
        board = self.board
        return sorted(
            [("fresh", item.index) for item in board.fresh]
            + [("again", item.index) for _, _, item in board.retry_ready]
            + [("resting", item.index) for _, _, item in board.backing_off]
            + [("running", attempt.item.index) for attempt in board.running.values()]
            + [("aside", item.index) for behind in board.deferred_by_model.values() for item in behind]
            + [("stranded", item.index) for item in board.unservable]
            + [("left", item.index) for item in board.interrupted_items]
        )

    def everything(self) -> object:
        board = self.board
        items = [(i.state, i.attempts, i.tries, i.limited) for i in self.items]
        return self.places(), items, len(board.admitted), board.done, board.failed, board.interrupted, board.retried

    @invariant()
    def every_item_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "board"):
            return
        board, naive = self.board, self.naive
        kept = naive.in_place("fresh", "again", "resting", "aside", "running", "stranded", "left")
        assert self.places() == sorted((item.place, item.index) for item in kept)
        assert [item.index for item in board.fresh] == [item.index for item in naive.in_place("fresh")]
        assert len(board.admitted) == len(naive.in_place("admitted"))
        assert board.deferred_count == len(naive.in_place("aside"))
        assert all(board.deferred_by_model.values())  # no model is remembered for nothing
        assert [item.state for item in self.items] == [STATE_IN[item.place] for item in naive.items]
        counts = {
            "done": board.done,
            "failed": board.failed,
            "interrupted": board.interrupted,
            "running": len(board.running),
            "admitted": len(board.admitted),
            "waiting": sum(1 for _ in board.waiting_items()),
        }
        assert j2_counts_add_up(board.taken, counts) is None

    @invariant()
    def the_counts_are_those_of_the_history(self) -> None:
        if not hasattr(self, "board"):
            return
        board, naive = self.board, self.naive
        said = (board.done, board.failed, board.interrupted, board.retried, board.limited, board.late)
        assert said == tuple(map(naive.count, ("done", "failed", "left", "retried", "limited", "late")))
        assert sum(item.state in FINAL for item in self.items) == board.done + board.failed
        assert [item.attempts for item in self.items] == [item.attempts for item in naive.items]
        assert all(item.tries == naive.items[item.index].retries <= naive.retries for item in self.items)
        assert [item.limited for item in self.items] == [item.limits for item in naive.items]

    @invariant()
    def at_most_one_attempt_of_an_item_runs_and_tokens_only_grow(self) -> None:
        if not hasattr(self, "board"):
            return
        running = [attempt.item.index for attempt in self.board.running.values()]
        assert len(set(running)) == len(running)
        tokens = [attempt.token for attempt, _ in self.begun]
        assert tokens == list(range(self.last_token + 1, self.last_token + 1 + len(tokens)))
        assert all(token == attempt.token for token, attempt in self.board.running.items())

    @invariant()
    def it_knows_when_to_look_again_and_when_it_is_over(self) -> None:
        if not hasattr(self, "board"):
            return
        assert self.board.next_due == self.naive.next_due
        assert self.board.is_settled is self.naive.settled

    def teardown(self) -> None:
        """The run is over: what a limit stopped is parked, and nothing else is."""
        if not hasattr(self, "board"):
            return
        expected = [item.index for item in self.naive.items if item.place in WAITING and item.limits]
        parked = self.board.park()
        assert sorted(item.index for item in parked) == expected
        assert [i.index for i in self.items if i.state is ItemStatus.PARKED] == expected


# 20,000 steps in `make test`, always the same; AGENTOS_FUZZ_STEPS=N walks that many others, never the same.
STEPS = int(os.environ.get("AGENTOS_FUZZ_STEPS", "20000"))
STEPS_A_STORY = 200
STORIES_A_TEST = 25


@pytest.mark.parametrize("number", range(max(1, STEPS // STEPS_A_STORY // STORIES_A_TEST)))
def test_the_board_and_the_naive_board_never_disagree(number: int) -> None:
    luck = random.SystemRandom().getrandbits(32) if "AGENTOS_FUZZ_STEPS" in os.environ else number
    story = seed(luck)(type("Story", (Story,), {}))
    run_state_machine_as_test(
        story,
        settings=settings(
            max_examples=STORIES_A_TEST,
            stateful_step_count=STEPS_A_STORY,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=tuple(HypothesisPhase) if "AGENTOS_SHRINK" in os.environ else (HypothesisPhase.generate,),
        ),
    )
