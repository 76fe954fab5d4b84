"""The rules of the item scheduler, one at a time."""

from __future__ import annotations

import pytest

from agentos.runs.core.halt import parse_halt
from agentos.runs.core.item_scheduler import FOREVER, MAX_CONSECUTIVE_LIMITS, ItemScheduler
from agentos.runs.core.records import Attempt, Item
from agentos.runs.core.states import STATUS_AFTER, AttemptEnd, ItemStatus, Phase, Verdict


def board_of(count: int, **options: object) -> ItemScheduler:
    board = ItemScheduler(**options)  # type: ignore[arg-type]
    board.fresh.extend(Item(index, f"item-{index}", index) for index in range(count))
    board.taken = count
    board.exhausted = True
    return board


def begin(board: ItemScheduler, now: float = 0.0) -> Attempt:
    item = board.next_item()
    assert item is not None
    attempt = board.begin(item, None, now)
    assert attempt is not None
    return attempt


def end(
    board: ItemScheduler, attempt: Attempt, ended: AttemptEnd, quota: str = "q", now: float = 0.0, luck: float = 0.5
) -> Verdict:
    return board.finish(attempt, ended, quota, now, luck)


def limit_once(board: ItemScheduler, now: float, quota: str = "q") -> tuple[Verdict, float]:
    """Let the next ready item be limited; say what became of it, and how long it rests."""
    verdict = end(board, begin(board, now), AttemptEnd.LIMIT, quota, now)
    return verdict, board.next_due - now


# -- order --------------------------------------------------------------------------------------------------------


def test_items_begin_in_the_order_of_the_input() -> None:
    board = board_of(3)

    assert [begin(board).item.index for _ in range(3)] == [0, 1, 2]
    assert board.next_item() is None


def test_items_to_be_run_again_go_before_fresh_ones_in_the_order_of_the_input() -> None:
    board = board_of(5)
    first, second, third = begin(board), begin(board), begin(board)
    for attempt in (third, first, second):
        end(board, attempt, AttemptEnd.TRANSIENT, luck=0.0)
    board.release_due(0.0)

    assert [begin(board).item.index for _ in range(5)] == [0, 1, 2, 3, 4]


def test_an_item_put_back_stands_where_it_stood() -> None:
    board = board_of(3)
    first = board.next_item()
    assert first is not None

    board.put_back(first)

    assert not board.admitted
    assert [begin(board).item.index for _ in range(3)] == [0, 1, 2]


def test_an_attempt_that_is_taken_back_has_not_begun() -> None:
    board = board_of(3)
    attempt = begin(board)
    begin(board)

    taken_back = board.requeue_attempt(attempt)
    again = begin(board)

    assert taken_back
    assert attempt.ended
    assert (again.item.index, again.number) == (0, 1)
    assert again.token != attempt.token
    assert (board.failed, board.interrupted, board.retried) == (0, 0, 0)


def test_an_attempt_that_was_given_up_cannot_be_taken_back() -> None:
    board = board_of(1)
    attempt = begin(board)
    board.abandon_attempt(attempt, failed=True)

    assert not board.requeue_attempt(attempt)
    assert board.next_item() is None


def test_a_lease_that_came_goes_to_an_earlier_item_if_one_has_become_ready() -> None:
    board = board_of(2)
    early = begin(board)
    late = board.next_item()
    assert late is not None
    end(board, early, AttemptEnd.TRANSIENT, luck=0.0)
    board.release_due(0.0)

    assert board.swap_for_earlier(late) is early.item
    assert board.swap_for_earlier(early.item) is early.item
    assert len(board.admitted) == 1
    assert [item.index for item in board.waiting_items()] == [1]


def test_an_item_that_rests_is_not_begun_before_its_instant() -> None:
    board = board_of(1)
    end(board, begin(board), AttemptEnd.TRANSIENT, luck=0.5)

    assert board.next_due == 0.5
    assert board.release_due(0.4) == 0
    assert board.next_item() is None
    assert board.release_due(0.5) == 1
    assert board.next_due == FOREVER


# -- attempts -----------------------------------------------------------------------------------------------------


def test_tokens_go_on_from_those_of_earlier_runs() -> None:
    board = board_of(2, last_token=17)

    assert [begin(board).token, begin(board).token] == [18, 19]


def test_attempts_go_on_from_those_of_earlier_runs() -> None:
    board = board_of(1)
    board.fresh[0].attempts = 4

    assert begin(board).number == 5


@pytest.mark.parametrize("ended", list(AttemptEnd))
def test_an_attempt_that_was_given_up_changes_nothing_however_it_ends(ended: AttemptEnd) -> None:
    board = board_of(1)
    attempt = begin(board)
    assert board.abandon_attempt(attempt, failed=True)

    verdict = end(board, attempt, ended)

    assert verdict is Verdict.LATE
    assert (board.done, board.failed, board.late, board.limited, board.retried) == (0, 1, 1, 0, 0)
    assert attempt.item.state is ItemStatus.FAILED
    assert not board.backing_off
    assert board.is_settled


def test_an_old_attempt_is_late_though_a_newer_one_of_its_item_runs() -> None:
    """By token, not by item: the newer one decides."""
    board = board_of(1)
    old = begin(board)
    board.abandon_attempt(old, failed=False)
    board._requeue(board.interrupted_items.pop())
    new = begin(board)

    assert end(board, old, AttemptEnd.VALUE) is Verdict.LATE
    assert new.token in board.running
    assert end(board, new, AttemptEnd.VALUE) is Verdict.DONE


def test_an_attempt_that_ended_cannot_be_abandoned() -> None:
    board = board_of(1)
    attempt = begin(board)
    end(board, attempt, AttemptEnd.VALUE)

    assert not board.abandon_attempt(attempt, failed=True)
    assert (board.done, board.failed) == (1, 0)


def test_every_verdict_but_late_has_its_state() -> None:
    assert set(STATUS_AFTER) == set(Verdict) - {Verdict.LATE}


# -- retries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_an_error_that_may_pass_is_tried_so_often_again_and_no_oftener(retries: int) -> None:
    board = board_of(1, retries=retries)
    now, verdicts = 0.0, []
    while board.retry_ready or board.fresh or board.backing_off:
        now += 100.0
        board.release_due(now)
        verdicts.append(end(board, begin(board, now), AttemptEnd.TRANSIENT, now=now))

    assert verdicts == [Verdict.RETRY] * retries + [Verdict.FAILED]
    assert board.retried == retries


@pytest.mark.parametrize(("rest", "waits"), [(0.0, 0.5), (0.2, 0.5), (20.0, 20.0), (60.0, 60.0), (7200.0, 60.0)])
def test_a_retry_waits_as_long_as_the_provider_asked_up_to_a_minute(rest: float, waits: float) -> None:
    board = board_of(1, retries=1)

    assert board.finish(begin(board), AttemptEnd.TRANSIENT, "q", 0.0, 0.5, rest) is Verdict.RETRY

    assert board.next_due == waits


@pytest.mark.parametrize("rest", [0.5, 20.0, 7200.0])
def test_a_limit_is_waited_for_as_long_as_the_provider_asked_where_nothing_else_waits_for_it(rest: float) -> None:
    """The run names a rest only where no pool lets the key rest."""
    board = board_of(1)

    assert board.finish(begin(board), AttemptEnd.LIMIT, "q", 0.0, 0.5, rest) is Verdict.LIMITED

    assert board.next_due == rest


def test_limits_in_a_row_are_waited_for_by_whichever_is_longer() -> None:
    board = board_of(1)
    now, waits = 0.0, []
    for _ in range(6):
        board.finish(begin(board, now), AttemptEnd.LIMIT, "q", now, 0.5, 3.0)
        waits.append(board.next_due - now)
        now = board.next_due
        board.release_due(now)

    assert waits == [3.0, 3.0, 3.0, 4.0, 8.0, 16.0]


def test_another_error_fails_at_once() -> None:
    board = board_of(1)

    assert end(board, begin(board), AttemptEnd.ERROR) is Verdict.FAILED
    assert board.is_settled


def test_limits_spend_no_try_and_a_try_ends_a_row_of_limits() -> None:
    board = board_of(1, retries=1)
    now = 0.0
    told = []
    for ended in (
        AttemptEnd.LIMIT,
        AttemptEnd.LIMIT,
        AttemptEnd.TRANSIENT,
        AttemptEnd.LIMIT,
        AttemptEnd.LIMIT,
        AttemptEnd.TRANSIENT,
    ):
        now += 100.0
        board.release_due(now)
        told.append((end(board, begin(board, now), ended, now=now), board.next_due - now))

    assert told == [
        (Verdict.LIMITED, 0.0),
        (Verdict.LIMITED, 1.0),
        (Verdict.RETRY, 0.5),
        (Verdict.LIMITED, 0.0),  # a new row
        (Verdict.LIMITED, 1.0),
        (Verdict.FAILED, FOREVER),
    ]


# -- limits -------------------------------------------------------------------------------------------------------


def test_limits_in_a_row_wait_not_at_all_and_then_a_second_doubling_to_sixty() -> None:
    board = board_of(1)
    now, waits = 0.0, []
    for _ in range(30):
        verdict, wait = limit_once(board, now)
        assert verdict is Verdict.LIMITED  # for ever: nobody else gets through either
        waits.append(wait)
        now += 60.0
        board.release_due(now)

    assert waits[:9] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert set(waits[7:]) == {60.0}


def limited_while(quota_of_others: str | None, times: int) -> Verdict:
    """The last verdict on an item limited so often on quota "q", while another succeeds on *quota_of_others*."""
    board = board_of(2)
    verdict, _ = limit_once(board, 0.0)
    other, now = begin(board), 0.0
    if quota_of_others is not None:
        end(board, other, AttemptEnd.VALUE, quota_of_others)
    for _ in range(times - 1):
        now += 60.0
        board.release_due(now)
        verdict, _ = limit_once(board, now)
    return verdict


def test_twenty_limits_in_a_row_while_others_succeed_on_that_quota_never_fit() -> None:
    assert MAX_CONSECUTIVE_LIMITS == 20
    assert limited_while("q", 19) is Verdict.LIMITED
    assert limited_while("q", 20) is Verdict.FAILED


def test_twenty_limits_without_a_success_on_that_quota_keep_waiting() -> None:
    assert limited_while(None, 40) is Verdict.LIMITED
    assert limited_while("another", 40) is Verdict.LIMITED


def test_an_item_without_a_key_keeps_waiting_while_others_succeed() -> None:
    board = board_of(40)
    waiting, now = begin(board), 0.0
    for _ in range(30):
        assert end(board, waiting, AttemptEnd.NO_KEY, now=now) is Verdict.LIMITED
        end(board, begin(board, now), AttemptEnd.VALUE, now=now)
        now += 60.0
        board.release_due(now)
        waiting = begin(board, now)

    assert (waiting.item.index, waiting.item.tries) == (0, 0)
    assert end(board, waiting, AttemptEnd.LIMIT, now=now) is Verdict.LIMITED


def test_successes_before_the_row_began_do_not_count() -> None:
    board = board_of(3)
    limited, other = begin(board), begin(board)
    end(board, limited, AttemptEnd.LIMIT)  # so that successes are counted at all
    end(board, other, AttemptEnd.VALUE)
    board.release_due(1.0)
    end(board, begin(board, 1.0), AttemptEnd.ERROR, now=1.0)  # its row is over
    now = 1.0
    for _ in range(25):
        verdict, _ = limit_once(board, now)
        assert verdict is Verdict.LIMITED
        now += 60.0
        board.release_due(now)


def moving_on(board: ItemScheduler) -> tuple[Item, float]:
    """Two successes on quota "b" that were counted because another item is in a row of limits."""
    end(board, begin(board), AttemptEnd.LIMIT, "b")
    for _ in range(2):
        end(board, begin(board), AttemptEnd.VALUE, "b")
    return board.fresh[0], 0.0


def test_successes_on_a_quota_it_comes_to_later_count_only_from_the_beginning_of_the_row() -> None:
    board = board_of(4)
    moving_on(board)
    verdict = None
    now = 0.0
    for number in range(20):
        item = board.next_item()
        while item is not None and item.index != 3:
            item = board.next_item()
        assert item is not None
        attempt = board.begin(item, None, now)
        assert attempt is not None
        # On quota "a" at first, where nobody ever succeeded; then on "b", where nobody has since.
        verdict = end(board, attempt, AttemptEnd.LIMIT, "a" if number < 10 else "b", now)
        now += 60.0
        board.release_due(now)

    assert verdict is Verdict.LIMITED


# -- stopping -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.FORCED, Phase.OVER])
def test_when_the_run_stops_nothing_begins_and_the_item_keeps_its_place(phase: Phase) -> None:
    board = board_of(2)
    item = board.next_item()
    assert item is not None
    board.phase = phase

    assert board.begin(item, None, 0.0) is None
    assert not board.admitted
    assert [item.index for item in board.waiting_items()] == [0, 1]
    assert board.is_settled


def test_from_the_deadline_on_nothing_begins() -> None:
    board = board_of(2)
    board.deadline = 10.0
    first, second = board.next_item(), board.next_item()
    assert first is not None
    assert second is not None

    assert board.begin(first, None, 9.999) is not None
    assert board.begin(second, None, 10.0) is None


def test_an_attempt_that_heeds_the_stop_is_interrupted_but_only_if_there_was_one() -> None:
    board = board_of(2)
    alone, stopped = begin(board), begin(board)

    assert end(board, alone, AttemptEnd.STOPPED) is Verdict.FAILED
    board.phase = Phase.DRAINING
    assert end(board, stopped, AttemptEnd.STOPPED) is Verdict.INTERRUPTED
    assert [item.index for item in board.interrupted_items] == [1]
    assert stopped.item.state is ItemStatus.INTERRUPTED


def test_a_run_that_stops_is_settled_when_the_last_attempt_is_back() -> None:
    board = board_of(3)
    attempt = begin(board)
    board.phase = Phase.DRAINING

    assert not board.is_settled
    end(board, attempt, AttemptEnd.VALUE)
    assert board.is_settled


def test_a_run_is_settled_only_when_nothing_waits_in_any_place() -> None:
    board = board_of(1)
    assert not board.is_settled  # fresh
    item = board.next_item()
    assert item is not None
    assert not board.is_settled  # admitted
    board.put_back(item)
    assert not board.is_settled  # again
    attempt = begin(board)
    assert not board.is_settled  # running
    end(board, attempt, AttemptEnd.LIMIT)
    assert not board.is_settled  # resting
    board.release_due(100.0)
    item = board.next_item()
    assert item is not None
    board.mark_unservable(item)
    found = [board.is_settled]  # no credential can ever serve it
    board.exhausted = False
    found.append(board.is_settled)  # there may be more
    assert found == [True, False]


def test_only_what_a_limit_stopped_is_parked_at_the_end() -> None:
    board = board_of(4)
    attempts = [begin(board) for _ in range(3)]
    end(board, attempts[0], AttemptEnd.LIMIT)
    end(board, attempts[1], AttemptEnd.TRANSIENT)
    end(board, attempts[2], AttemptEnd.VALUE)

    assert [item.index for item in board.park()] == [0]
    states = {item.index: item.state for item in board.waiting_items()}
    assert states == {0: ItemStatus.PARKED, 1: ItemStatus.PENDING, 3: ItemStatus.PENDING}


def test_an_item_that_is_refused_fails_without_an_attempt() -> None:
    board = board_of(1)
    item = board.next_item()
    assert item is not None

    board.refuse(item)

    assert (board.failed, len(board.admitted), item.attempts, item.state) == (1, 0, 0, ItemStatus.FAILED)
    assert board.is_settled


def test_the_halt_clause_is_asked_with_the_boards_counts() -> None:
    board = board_of(3, halt=parse_halt("soon,fail=2"))
    assert not board.is_halted()
    end(board, begin(board), AttemptEnd.ERROR)
    assert not board.is_halted()
    end(board, begin(board), AttemptEnd.ERROR)
    assert board.is_halted()
    assert not board_of(1).is_halted()


def test_a_percentage_of_all_items_needs_a_known_number_of_items() -> None:
    known = board_of(10, halt=parse_halt("soon,fail=10%"), total=10)
    unknown = board_of(10, halt=parse_halt("soon,fail=10%"))
    unknown.exhausted = False
    for board in (known, unknown):
        for _ in range(2):
            end(board, begin(board), AttemptEnd.ERROR)
    assert (known.is_halted(), unknown.is_halted()) == (True, False)

    unknown.taken, unknown.exhausted = 10, True

    assert unknown.is_halted()
