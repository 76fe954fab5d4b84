"""A remote report is applied to the pool and the log as if the attempt had run here."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentos import Cause, CredentialCoordinator, Interrupted, NotPicklable, RateLimited, Signal
from agentos.providers import Event
from agentos.runs.core.records import Attempt
from agentos.runs.core.states import Verdict
from agentos.runs.execution.engine_run import EngineRun
from agentos.runs.remote.apply_report import apply_lease_message, apply_report
from agentos.runs.remote.attempt_report import AttemptReport, LogLine, build_failure
from agentos.runs.remote.pickled import PickledObject, pack
from agentos.runs.remote.worker_lease import LeaseMessage
from agentos.testing import FakeClock

from .sample_assignments import SECRET
from .test_assignment import begun, plain

PATIENCE = 20.0
LIMITED = Signal(Event.LIMITED, delay=30.0, evidence=("header retry-after: 30",))


class Story:
    """A run with one item under way elsewhere, on the one key of a pool."""

    def __init__(self, *, pooled: bool = True, **options: Any) -> None:
        self.clock = FakeClock()
        self.pool = CredentialCoordinator([SECRET], clock=self.clock) if pooled else None
        self.run: EngineRun
        self.attempt: Attempt
        self.run, self.attempt = begun(plain, self.pool, clock=self.clock, **options)

    def replay(self, **facts: Any) -> tuple[Any, BaseException | None]:
        return apply_report(self.run, self.attempt, AttemptReport(self.attempt.token, **facts))

    def finish(self, **facts: Any) -> Verdict:
        verdict = self.run.finish(self.attempt, *self.replay(**facts))
        assert self.run._publisher.progress.close(
            PATIENCE
        )  # else what it has to say may come in the midst of another test
        return verdict

    def rests_for(self) -> float:
        """How long the key is left alone from now on."""
        assert self.pool is not None
        until = self.pool.snapshot()[0].rate_limited_until
        return max(0.0, until - self.clock.wall())


def test_a_value_comes_out_of_its_parcel() -> None:
    assert Story().replay(value=pack({"n": 1}, "it")) == ({"n": 1}, None)
    assert Story().replay() == (None, None)


def test_a_value_that_cannot_be_made_here_is_an_error_of_the_item() -> None:
    _, error = Story().replay(value=PickledObject(b"not a pickle"))

    assert isinstance(error, NotPicklable)
    assert error.what == "what its worker returned"


def test_a_limit_that_is_raised_rests_the_key_and_costs_no_try() -> None:
    story = Story(retries=0)

    verdict = story.finish(failure=build_failure(RateLimited(30)))

    assert verdict is Verdict.LIMITED
    assert story.rests_for() == pytest.approx(30)


def test_a_reported_limit_followed_by_another_error_uses_no_retry() -> None:
    story = Story(retries=0)

    verdict = story.finish(
        lease_messages=(LeaseMessage("rate_limited", 0.0, delay=30.0),), failure=build_failure(ValueError("no answer"))
    )

    assert verdict is Verdict.LIMITED
    assert story.rests_for() == pytest.approx(30)


def test_a_delay_reported_a_while_ago_is_shortened() -> None:
    story = Story()

    story.replay(lease_messages=(LeaseMessage("rate_limited", 5.0, delay=30.0),), duration=25.0)

    assert story.rests_for() == pytest.approx(10)


def test_a_delay_that_is_over_by_now_does_not_cool_the_key_down() -> None:
    story = Story()

    verdict = story.finish(
        lease_messages=(LeaseMessage("rate_limited", 0.0, delay=30.0),),
        duration=40.0,
        failure=build_failure(ValueError("no answer")),
    )

    assert verdict is Verdict.LIMITED
    assert story.rests_for() == 0


def test_a_reported_answer_has_less_left_too() -> None:
    story = Story()

    story.replay(lease_messages=(LeaseMessage("report", 0.0, signal=LIMITED),), duration=20.0)

    assert story.rests_for() == pytest.approx(10)


def test_an_error_that_was_reported_is_not_counted_twice() -> None:
    story = Story(retries=0)
    error = OSError("429")

    verdict = story.finish(
        lease_messages=(LeaseMessage("report", 0.0, signal=LIMITED),),
        duration=20.0,
        failure=build_failure(error, reported=True),
    )

    assert verdict is Verdict.LIMITED
    assert story.rests_for() == pytest.approx(10)


@pytest.mark.parametrize(("verb", "state"), [("rejected", "dead"), ("spent", "spent")], ids=["dead", "spent"])
def test_a_key_that_is_dead_or_spent_is_used_no_more(verb: str, state: str) -> None:
    story = Story()

    story.replay(lease_messages=(LeaseMessage(verb, 0.0, reason="as the provider says"),))

    assert story.pool is not None
    assert story.pool.snapshot()[0].state == state


def test_without_an_agentos_pool_lease_messages_are_ignored() -> None:
    story = Story(pooled=False)

    assert story.replay(lease_messages=(LeaseMessage("settle", 0.0, used={"tokens": 3.0}),)) == (None, None)
    assert story.attempt.lease is None


def test_an_invalid_lease_message_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    story = Story()

    apply_lease_message(story.attempt, LeaseMessage("settle", 0.0, used={"words": 3.0}))

    assert "the-item: what its worker reported about its key is invalid (ValueError)" in caplog.text


def test_lines_come_home_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "agentos.worker"):
        Story().replay(log_lines=(LogLine(logging.INFO, f"[the-item] used {SECRET} 100%s"),))

    assert [(r.levelno, r.name) for r in caplog.records] == [(logging.INFO, "agentos.worker")]
    assert "[the-item] used" in caplog.text
    assert "100%s" in caplog.text
    assert SECRET not in caplog.text


def test_a_place_that_is_not_fit_stops_the_run_and_fails_no_item() -> None:
    story = Story()

    verdict = story.finish(unready="the credential key-1 was not found on node-3")

    assert verdict is Verdict.INTERRUPTED
    assert story.run.state.stats.cause is Cause.FAULT
    assert story.run.state.stats.stopped_by == (
        "a worker that could not start: the credential key-1 was not found on node-3"
    )


@pytest.mark.parametrize(("why", "kind"), [("stop", Interrupted), ("timeout", TimeoutError)])
def test_a_coroutine_that_was_cancelled_from_here_ends_by_what_it_was_cancelled_for(
    why: str, kind: type[BaseException]
) -> None:
    story = Story(timeout=3)
    story.attempt.cancelled = why

    _, error = story.replay(cancelled=True, failure=build_failure(Interrupted("its task was cancelled")))

    assert type(error) is kind


def test_a_cancellation_that_the_run_did_not_request_is_interrupted() -> None:
    _, error = Story().replay(cancelled=True, failure=build_failure(Interrupted("its task was cancelled")))

    assert isinstance(error, Interrupted)


class Raising(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the disk is full")


def test_a_handler_that_fails_costs_the_line_and_not_the_item() -> None:
    logger, handler = logging.getLogger("agentos.worker"), Raising()
    logger.addHandler(handler)
    try:
        found = Story().replay(log_lines=(LogLine(logging.WARNING, "half-way"),), value=pack(1, "it"))
    finally:
        logger.removeHandler(handler)

    assert found == (1, None)
