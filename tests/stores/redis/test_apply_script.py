"""apply.lua executes a step as a whole if all that it depends on is unchanged, else not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import ResponseError

from agentos.stores.redis.metadata import StoreMetadata
from agentos.stores.redis.resp_connection import RespConnection
from agentos.stores.redis.server_time import server_time_for
from agentos.stores.redis.step_messages import READ_ONLY_REQUEST, StepReply, StepRequest, parse_reply
from agentos.stores.redis.store_connection import StoreConnection
from agentos.stores.redis.url import RedisLocation
from agentos.testing import FakeClock

TTL = 30.0
ANY = ("", "")


class Talk:
    """Somebody who sends orders, at an hour the test says."""

    def __init__(self, place: RedisLocation) -> None:
        self.link = StoreConnection(place, server_time_for(FakeClock()), TTL)
        self.link.open()
        assert self.link.handshake is not None
        self.wire: RespConnection = self.link.handshake.connection
        self.meta: StoreMetadata = self.link.handshake.meta
        self.steps = 0

    def send(
        self,
        order: StepRequest = READ_ONLY_REQUEST,
        *,
        hour: float = 1000.0,
        seen: int = 0,
        between: tuple[str, str] = ANY,
        version: str | None = None,
    ) -> StepReply:
        words = order.encode(repr(hour), version or self.meta.version, between, seen)
        return parse_reply(self.link.apply(self.wire, words))

    def step(self, session: str = "me.1", **what: object) -> StepRequest:
        self.steps += 1
        return StepRequest(session, self.steps, **what)  # type: ignore[arg-type]

    def join(self, session: str = "me.1", hour: float = 1000.0) -> StepReply:
        return self.send(self.step(session, joins=True, renew=TTL), hour=hour)

    def write(self, hour: float = 1000.0, seen: int = 0, **texts: str) -> StepReply:
        return self.send(self.step(writes=texts), hour=hour, seen=seen)

    def ends_at(self, session: str = "me.1") -> float | None:
        found = self.wire.execute("ZSCORE", self.link.keys[3], session)
        return None if found is None else float(found)

    def text(self, name: str) -> str | None:
        found = self.wire.execute("HGET", self.link.keys[1], name)
        return None if found is None else found.decode()


@pytest.fixture
def talk(place: RedisLocation) -> Iterator[Talk]:
    talk = Talk(place)
    yield talk
    talk.link.close()


def test_a_written_record_is_an_update_for_other_callers(talk: Talk) -> None:
    talk.join()
    done = talk.write(c1="one", q1="two")

    seen_nothing, seen_it = talk.send(), talk.send(seen=done.sequence)

    assert done.what == "done"
    version = str(done.sequence)
    assert sorted(zip(*[iter(seen_nothing.updates)] * 3, strict=True)) == [
        ("c1", version, "one"),
        ("q1", version, "two"),
    ]
    assert seen_it.updates == []


def test_a_step_that_depends_on_a_changed_record_only_gets_the_update(talk: Talk) -> None:
    talk.join()
    first = talk.write(c1="one")
    second = talk.write(c1="two", seen=first.sequence)

    late = talk.send(talk.step(read_versions=f"c1 {first.sequence}", writes={"c1": "lost"}), seen=first.sequence)

    assert late.what == "news"
    assert late.updates == ["c1", str(second.sequence), "two"]
    assert talk.text("c1") == "two"


def test_a_step_that_depends_on_other_records_is_executed_and_gets_the_update(talk: Talk) -> None:
    talk.join()
    first = talk.write(c1="one", c2="other")
    second = talk.write(c2="new", seen=first.sequence)

    done = talk.send(talk.step(read_versions=f"c1 {first.sequence}", writes={"c1": "mine"}), seen=first.sequence)

    assert (done.what, done.updates) == ("done", ["c2", str(second.sequence), "new"])


def test_a_record_that_is_to_be_new_is_not_written_over_another(talk: Talk) -> None:
    talk.join()
    talk.write(c1="one")

    refused = talk.send(talk.step(read_versions="c1 0", writes={"c1": "also the first"}))

    assert (refused.what, talk.text("c1")) == ("news", "one")


def test_the_same_step_sent_again_is_not_done_again_and_tells_its_token(talk: Talk) -> None:
    talk.join()
    order = talk.step(floor=0, writes={"c1": "lease [\0]"})
    done = talk.send(order)

    again = talk.send(order)

    assert (again.what, again.was_done(order.number), again.last_token()) == ("late", True, done.token)
    assert again.sequence == done.sequence


def test_asking_again_whether_a_step_was_executed_gives_the_same_answer(talk: Talk) -> None:
    talk.join()
    order = talk.step(floor=0, writes={"c1": "lease [\0]"})
    done = talk.send(order)

    answers = [talk.send(talk.step(renew=TTL)) for _ in range(3)]

    assert [answer.was_done(order.number) for answer in answers] == [True] * 3
    assert {answer.last_token() for answer in answers} == {done.token}


def test_a_step_that_was_resolved_as_lost_is_not_executed_later(talk: Talk) -> None:
    talk.join()
    early = talk.step(writes={"c1": "early"})
    talk.send(talk.step(renew=TTL))

    assert talk.send(early).what == "late"
    assert talk.text("c1") is None


def test_a_step_that_comes_after_a_later_one_is_not_done(talk: Talk) -> None:
    talk.join()
    early = talk.step(writes={"c1": "early"})
    talk.write(c2="late")

    assert talk.send(early).what == "late"
    assert talk.text("c1") is None


def test_the_token_is_put_where_it_belongs(talk: Talk) -> None:
    talk.join()

    done = talk.send(talk.step(floor=0, writes={"c1": "head\n[7]\n[\0,x]"}))

    assert talk.text("c1") == f"head\n[7]\n[{done.token},x]"


def test_tokens_grow_and_are_above_any_that_the_caller_knows(talk: Talk) -> None:
    talk.join()
    tokens = [talk.send(talk.step(floor=floor, writes={"c1": "\0"})).token for floor in (0, 0, talk.meta.token + 99, 5)]

    assert [token - talk.meta.token for token in tokens if token is not None] == [1, 2, 100, 101]


def test_a_session_lasts_for_its_time_to_live_from_when_it_was_renewed(talk: Talk) -> None:
    talk.join(hour=1000.0)

    talk.send(talk.step(renew=TTL), hour=1020.0)

    assert talk.ends_at() == 1050.0


def test_a_session_that_has_run_out_does_nothing_more(talk: Talk) -> None:
    talk.join(hour=1000.0)

    gone = talk.send(talk.step(renew=TTL, writes={"c1": "late"}), hour=1030.0)

    assert gone.what == "gone"
    assert (talk.text("c1"), talk.ends_at()) == (None, 1030.0)


def test_a_session_that_has_run_out_does_nothing_more_even_if_it_knows_all_there_is(talk: Talk) -> None:
    talk.join(hour=1000.0)
    seen = talk.write(c1="one").sequence

    gone = talk.write(hour=1030.0, seen=seen, c1="two")

    assert (gone.what, talk.text("c1")) == ("gone", "one")


def test_a_session_is_renewed_even_if_the_rest_of_its_step_is_refused(talk: Talk) -> None:
    talk.join(hour=1000.0)
    talk.write(c1="one")

    refused = talk.send(talk.step(renew=TTL, read_versions="c1 0", writes={"c1": "two"}), hour=1020.0)

    assert (refused.what, talk.ends_at()) == ("news", 1050.0)


def test_a_session_that_has_not_run_out_is_not_ended_by_another(talk: Talk) -> None:
    talk.join("other.1", hour=1000.0)
    talk.join("me.1", hour=1010.0)

    early = talk.send(talk.step(renew=TTL, ended=["other.1"]), hour=1029.0)
    in_time = talk.send(talk.step(renew=TTL, ended=["other.1"]), hour=1030.0)

    assert (early.what, in_time.what) == ("news", "done")
    assert talk.ends_at("other.1") is None


def test_a_renewal_returns_the_next_sessions_to_expire(talk: Talk) -> None:
    for number, session in enumerate(("a.1", "b.1", "c.1")):
        reply = talk.join(session, hour=1000.0 + number)

    assert reply.expiry == (("a.1", 1030.0), ("b.1", 1031.0))


def test_a_read_returns_the_number_of_sessions(talk: Talk) -> None:
    for session in ("a.1", "b.1", "c.1"):
        talk.join(session)

    assert talk.send().sessions == 3


def test_a_session_that_was_renewed_meanwhile_does_not_run_out_earlier(talk: Talk) -> None:
    talk.join(hour=1000.0)
    talk.send(talk.step(renew=TTL), hour=1020.0)

    talk.link.schedule_expiry(talk.wire, "me.1", 1030.0, 1035.0)
    assert talk.ends_at() == 1050.0

    talk.link.schedule_expiry(talk.wire, "me.1", 1050.0, 1035.0)
    assert talk.ends_at() == 1035.0


def test_a_session_whose_end_is_forgotten_is_given_one_unless_it_has_one_by_now(talk: Talk) -> None:
    talk.link.schedule_expiry(talk.wire, "me.1", None, 1035.0)
    talk.link.schedule_expiry(talk.wire, "me.1", None, 1040.0)

    assert talk.link.read_session_expiries(talk.wire) == {"me.1": 1035.0}


@pytest.mark.parametrize(("earliest", "latest"), [("1000.1", "1002"), ("998", "999.9")])
def test_a_step_outside_its_time_bounds_is_not_executed(talk: Talk, earliest: str, latest: str) -> None:
    talk.join()

    reply = talk.send(talk.step(writes={"c1": "late"}), hour=1000.0, between=(earliest, latest))

    assert (reply.what, talk.text("c1")) == ("time", None)


def test_a_step_for_other_metadata_is_not_executed(talk: Talk) -> None:
    talk.join()

    reply = talk.send(talk.step(writes={"c1": "late"}), version="another")

    assert (reply.what, talk.text("c1")) == ("meta", None)


def test_the_stores_time_is_the_servers_and_the_shift(talk: Talk) -> None:
    new = talk.meta.changed(shift=-120.0)
    assert talk.link.amend(talk.wire, new, talk.meta)
    talk.meta = new

    talk.join(hour=1000.0)

    assert talk.ends_at() == 1000.0 - 120.0 + TTL


def test_the_second_of_two_concurrent_metadata_changes_fails(talk: Talk) -> None:
    assert talk.link.amend(talk.wire, talk.meta.changed(why="first"), talk.meta)

    assert not talk.link.amend(talk.wire, talk.meta.changed(why="second"), talk.meta)

    found = talk.link.read_meta(talk.wire)
    assert found is not None
    assert found.why == "first"


def test_the_counter_of_tokens_is_only_ever_raised(talk: Talk) -> None:
    highest = talk.meta.token + 50
    first = talk.meta.changed(token=highest)
    assert talk.link.amend(talk.wire, first, talk.meta)
    assert talk.link.amend(talk.wire, first.changed(token=highest - 30), first)

    found = talk.link.read_meta(talk.wire)

    assert found is not None
    assert found.token == highest


def test_a_script_that_the_server_has_forgotten_is_sent_again(talk: Talk) -> None:
    talk.wire.execute("SCRIPT", "FLUSH")

    assert talk.join().what == "done"


def test_an_interrupt_between_question_and_answer_leaves_no_answer_for_the_next_question(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    talk.join()
    talk.write(c1="x" * 200_000)  # so that its reading takes more than one piece
    monkeypatch.setattr(talk.wire, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        talk.send()
    monkeypatch.undo()

    with pytest.raises(Disconnected):
        talk.send()


def test_an_interrupt_after_any_question_leaves_no_answer_for_the_next_one(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(talk.wire._connection, "read_response", interrupted)
    with pytest.raises(KeyboardInterrupt):
        talk.wire.execute("TIME")
    monkeypatch.undo()

    with pytest.raises(Disconnected):
        talk.wire.execute("TIME")


def test_a_refusal_is_an_answer_after_which_the_next_question_can_be_asked(talk: Talk) -> None:
    with pytest.raises(ResponseError):
        talk.wire.execute("NO-SUCH-COMMAND")

    assert talk.wire.execute("ECHO", "still here") == b"still here"


def test_of_a_session_that_ends_nothing_is_left(talk: Talk) -> None:
    talk.join("gone.1")
    talk.send(talk.step("gone.1", writes={"sgone.1": "a session"}))
    talk.join(hour=1000.0 + 2 * TTL)

    done = talk.send(talk.step(ended=["gone.1"], writes={"line": "who is left"}), hour=1000.0 + 2 * TTL)

    assert (done.what, talk.text("sgone.1"), talk.ends_at("gone.1")) == ("done", None, None)
    assert talk.send(hour=1000.0 + 2 * TTL).updates == ["line", str(done.sequence), "who is left"]
