"""When a run says that the network does not answer."""

from __future__ import annotations

from agentos.runs.core.network_watch import FOREVER, NetworkWatch


def test_nothing_is_said_without_an_unanswered_attempt() -> None:
    assert NetworkWatch().due_at == FOREVER


def test_it_is_said_ten_seconds_after_the_first_unanswered_attempt() -> None:
    watch = NetworkWatch()

    watch.on_unanswered("refused", 5.0, 1_000.0)

    assert (watch.due_at, watch.since) == (15.0, 1_000.0)


def test_it_is_said_at_once_after_three_in_a_row() -> None:
    watch = NetworkWatch()

    for number in range(3):
        watch.on_unanswered(f"refused {number}", 5.0 + number, 1_000.0 + number)

    assert watch.due_at <= 7.0
    assert (watch.since, watch.why) == (1_000.0, "refused 2")


def test_it_is_said_once() -> None:
    watch = NetworkWatch()
    watch.on_unanswered("refused", 5.0, 1_000.0)
    watch.said = True

    watch.on_unanswered("refused", 500.0, 1_500.0)

    assert watch.due_at == FOREVER


def test_an_answer_ends_it() -> None:
    watch = NetworkWatch()
    watch.on_unanswered("refused", 5.0, 1_000.0)
    assert not watch.on_answer()
    watch.on_unanswered("refused", 6.0, 1_001.0)
    watch.said = True

    assert watch.on_answer()
    assert (watch.since, watch.due_at) == (None, FOREVER)
