"""Reports on a run from its folder: after it, while it is running, after a crash, with a damaged journal."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos import Context, RateLimited
from agentos.errors import JournalUnavailable, NotAJournal
from agentos.runs.journal import Journal, encode_row, locate_files
from agentos.runs.report import status
from agentos.runs.report.failure_causes import FailureCauses, normalize_error
from agentos.runs.report.item_states import build_end_check, find_ids, find_last_entry, list_items
from agentos.runs.report.key_waits import sum_waiting
from agentos.runs.report.run_card import read_card
from agentos.runs.report.run_report import Durations, build_report
from agentos.runs.report.run_summary import build_summary
from agentos.runs.report.status import find_owner

from ..journal.journal_helpers import PATIENCE, Listener, fingerprints, flip_bit
from ..sample_runs import SECRETS, Child, all_well, by_fate, by_name, card, crashed, events, run, stop_after


def counts(folder: Path) -> dict[str, int]:
    return {state: count for state, count in build_report(folder).counts.items() if count}


# -- how it stands --------------------------------------------------------------------------------------------------


def test_a_finished_run_is_told_with_its_counts_and_times(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a", "b", "bad-1", "c"])

    report = build_report(tmp_path / "r")

    assert (report.name, str(report.state), report.total, report.left) == ("r", "finished", 4, 0)
    assert counts(tmp_path / "r") == {"done": 3, "failed": 1}
    assert (report.attempts, report.retried, report.limited) == (4, 0, 0)
    assert report.durations is not None
    assert 0 <= report.durations.p50 <= report.durations.p95 <= report.durations.longest
    assert report.rate is not None
    assert report.unfinished == {}
    assert report.damage is None


def test_a_stopped_run_says_by_what_and_names_what_is_left(tmp_path: Path) -> None:
    stop_after(tmp_path / "r", ["a", "b", "c", "d"], 2)

    report = build_report(tmp_path / "r")

    assert str(report.state) == "stopped by shutdown()"
    assert (report.total, report.left, report.not_begun) == (4, 2, 2)
    assert report.unfinished == {"pending": ("c", "d")}
    assert [session.ended for session in report.sessions] == ["stopped by shutdown()"]


def test_a_run_that_is_on_is_told_and_not_disturbed(tmp_path: Path) -> None:
    with Child(tmp_path / "r") as child:
        report, brief = build_report(tmp_path / "r"), build_summary(tmp_path / "r")
        assert str(report.state) == str(brief.state) == f"running as pid {child.pid}"
        assert counts(tmp_path / "r") == {"done": 2, "failed": 1, "running": 1, "pending": 1}
        assert (brief.done, brief.failed, brief.left, brief.total) == (2, 1, 2, 5)
        assert report.unfinished == {"running": ("slow",), "pending": ("later",)}
        assert report.sessions[-1].ended_at is None
        child.let_go()

    assert str(build_report(tmp_path / "r").state) == "finished"
    assert counts(tmp_path / "r") == {"done": 4, "failed": 1}


def test_a_killed_run_reads_as_crashed_and_looking_changes_no_byte(tmp_path: Path) -> None:
    folder = crashed(tmp_path / "r")
    before = fingerprints(folder)

    report, brief = build_report(folder), build_summary(folder)

    assert report.state.word == brief.state.word == "crashed"
    assert report.unfinished == {"running": ("slow",), "pending": ("later",)}
    assert report.attempts == 4
    assert report.sessions[-1].ended == "crashed"
    assert fingerprints(folder) == before


def test_sessions_add_up_and_a_failed_item_that_was_done_later_counts_once(tmp_path: Path) -> None:
    folder = crashed(tmp_path / "r")
    run(folder, ["a", "b", "bad-1", "slow", "later"], all_well, retry_failed=True)

    report, brief = build_report(folder), build_summary(folder)

    assert counts(folder) == {"done": 5}
    assert (brief.done, brief.failed, brief.left) == (5, 0, 0)
    assert [session.ended for session in report.sessions] == ["crashed", "finished"]
    assert [session.finished for session in report.sessions] == [3, 3]
    assert report.failures == ()
    assert report.attempts == 7


def test_an_input_without_a_length_has_a_total_when_it_has_run_dry(tmp_path: Path) -> None:
    run(tmp_path / "dry", iter(["a", "bad-1"]))
    stop_after(tmp_path / "stopped", iter("abcdefgh"), 2)

    assert (build_report(tmp_path / "dry").total, build_summary(tmp_path / "dry").total) == (2, 2)
    assert (build_report(tmp_path / "stopped").total, build_summary(tmp_path / "stopped").total) == (None, None)


def test_a_shorter_input_later_loses_no_item_that_is_known(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a", "b", "c"])
    stop_after(tmp_path / "r", ["c", "d", "e"], 1)

    report = build_report(tmp_path / "r")

    assert counts(tmp_path / "r") == {"done": 4, "pending": 1}
    assert report.total == 5
    assert report.unfinished == {"pending": ("e",)}


def agreed(folder: Path) -> tuple[int, int, int | None, int]:
    """Done, failed, all and left, as the report and the line in the list both have them."""
    report, brief = build_report(folder), build_summary(folder)
    numbers = (report.counts["done"], report.counts["failed"], report.total, report.left)
    left = report.left if brief.left is None else brief.left
    assert (brief.done, brief.failed, brief.total, left) == numbers
    assert str(brief.state) == str(report.state)
    assert brief.seconds == pytest.approx(report.wall)
    return numbers


def test_an_input_that_changed_is_counted_alike_in_the_report_and_in_the_list(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    stop_after(folder, ["a", "bad-1", "c"], 2)
    assert agreed(folder) == (1, 1, 3, 1)

    stop_after(folder, ["d", "e", "f", "g"], 1)
    assert agreed(folder) == (2, 1, 6, 3)

    run(folder, ["d"])
    assert agreed(folder) == (2, 1, 3, 0)

    run(folder, iter(["h", "bad-2"]))
    assert agreed(folder) == (3, 2, 5, 0)


def test_an_input_without_a_length_is_counted_alike_in_both(tmp_path: Path) -> None:
    run(tmp_path / "dry", iter(["a", "bad-1"]))
    stop_after(tmp_path / "stopped", iter("abcdefgh"), 2)

    assert agreed(tmp_path / "dry") == (1, 1, 2, 0)
    assert agreed(tmp_path / "stopped")[:3] == (2, 0, None)


def test_items_refused_for_their_ids_are_failed_ones_of_their_own(tmp_path: Path) -> None:
    results = run(tmp_path / "r", iter(["a", "b", "a", "a", "bad-1"]))
    assert sum(not result.success for result in results) == 3

    assert agreed(tmp_path / "r") == (2, 3, 5, 0)
    report = build_report(tmp_path / "r")
    assert sum(cluster.count for cluster in report.failures) == 3
    assert report.sessions[-1].finished == 5
    assert sorted(item.id for item in list_items(locate_files(tmp_path / "r"), "failed")) == ["a", "a", "bad-1"]
    assert sorted(item.id for item in list_items(locate_files(tmp_path / "r"), "done")) == ["a", "b"]


def test_items_refused_for_their_ids_count_once_however_often_they_are_met(tmp_path: Path) -> None:
    run(tmp_path / "r", iter(["a", "b", "a"]))

    run(tmp_path / "r", iter(["a", "b", "a"]))
    assert agreed(tmp_path / "r") == (2, 1, 3, 0)

    run(tmp_path / "r", iter(["a", "b"]))  # the input was mended
    assert agreed(tmp_path / "r") == (2, 0, 2, 0)


def test_a_run_of_nothing_is_finished(tmp_path: Path) -> None:
    run(tmp_path / "r", [])

    report = build_report(tmp_path / "r")

    assert (str(report.state), report.total, report.durations, report.rate) == ("finished", 0, None, None)


def test_only_the_first_ids_of_what_is_left_are_named(tmp_path: Path) -> None:
    stop_after(tmp_path / "r", [f"item-{n:04}" for n in range(2_500)], 1)

    report = build_report(tmp_path / "r", ids=3)

    assert report.unfinished == {"pending": ("item-0001", "item-0002", "item-0003")}
    assert report.counts["pending"] == 2_499


def test_a_process_that_has_the_number_of_the_dead_owner_does_not_pass_for_it(tmp_path: Path) -> None:
    folder = crashed(tmp_path / "r")
    lock = locate_files(folder).lock
    owner = json.loads(lock.read_text())
    lock.write_text(json.dumps({**owner, "pid": 1}))

    assert find_owner(lock) is None
    assert build_report(folder).state.word == "crashed"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"pid": "x", "host": 3}', b'{"pid": -1, "host": "h"}', b"\xff"]
)
def test_a_lock_file_with_nonsense_in_it_belongs_to_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)

    assert find_owner(tmp_path / "lock") is None


def test_a_run_that_ends_while_it_is_looked_at_does_not_read_as_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is read while the run is on, and when its owner is asked for, there is none any more."""
    asked = status.find_owner
    for look in (build_report, build_summary):
        with Child(tmp_path / look.__name__) as child:
            monkeypatch.setattr(status, "find_owner", lambda lock, child=child: [child.let_go(), asked(lock)][1])

            assert look(tmp_path / look.__name__).state.word == "finished"


def test_who_is_gone_is_not_asked_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = crashed(tmp_path / "r")
    monkeypatch.setattr(status, "_is_locked", lambda lock: pytest.fail("a run that begins now would be turned away"))

    assert find_owner(locate_files(folder).lock) is None


def test_a_run_that_no_key_could_go_on_with_says_so(tmp_path: Path) -> None:
    def refused(item: str, credential: str, context: Context) -> None:
        assert context.lease is not None
        context.lease.rejected("401")
        raise ValueError("unauthorised")

    run(tmp_path / "r", ["a", "b"], refused, keys=SECRETS[:1])

    assert str(build_report(tmp_path / "r").state).startswith("stopped by no usable credential")
    assert build_summary(tmp_path / "r").state == build_report(tmp_path / "r").state


def test_a_run_that_ended_by_itself_with_items_left_is_not_finished(tmp_path: Path) -> None:
    found = status.find_status(tmp_path / "lock", last_kind="closed", note=None, left=3)

    assert str(found) == "ended with items left"


def test_what_stopped_an_earlier_session_did_not_stop_the_last(tmp_path: Path) -> None:
    stop_after(tmp_path / "r", ["a", "b", "c"], 1)
    run(tmp_path / "r", ["a", "b", "c"])

    assert str(build_report(tmp_path / "r").state) == str(build_summary(tmp_path / "r").state) == "finished"
    assert [session.ended for session in build_report(tmp_path / "r").sessions] == ["stopped by shutdown()", "finished"]


def test_a_plan_that_was_cut_short_does_not_count(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "r", worker="work", total=3)
    writer = Listener().listen(journal)
    writer.put(encode_row(1.0, "plan", detail=json.dumps(["x", "y"])))
    assert writer.close(PATIENCE)
    assert counts(tmp_path / "r") == {"pending": 3}

    run(tmp_path / "r", ["a"])

    assert counts(tmp_path / "r") == {"done": 1}


def test_durations_are_told_by_their_ranks() -> None:
    assert Durations.of([float(n) for n in reversed(range(101))]) == Durations(50.0, 95.0, 100.0)
    assert Durations.of([]) is None


# -- keys and limits ------------------------------------------------------------------------------------------------


def test_each_key_is_told_with_what_it_did_and_what_limits_it_met(tmp_path: Path) -> None:
    met: list[str] = []

    def limited_once(item: str, credential: str) -> object:
        if item == "b" and not met:
            met.append(credential)
            raise RateLimited(0.001)
        return by_fate(item, credential)

    run(tmp_path / "r", ["a", "b", "bad-1"], limited_once, keys=SECRETS, workers=1)
    report = build_report(tmp_path / "r")

    assert sum(key.done for key in report.keys) == 2
    assert sum(key.failed for key in report.keys) == 1
    assert sum(key.limited for key in report.keys) == report.limited == 1
    assert report.attempts == 4
    assert not any(secret in json.dumps(report.as_json()) for secret in SECRETS)


def test_a_key_is_charged_for_its_time_and_not_for_failures_that_were_made_good(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a", "bad-1"], keys=SECRETS[:1])
    run(tmp_path / "r", ["a", "bad-1"], all_well, keys=SECRETS[:1], retry_failed=True)
    connection = sqlite3.connect(locate_files(tmp_path / "r").db)
    (seconds,) = connection.execute("select sum(duration) from entries").fetchone()
    connection.close()

    (key,) = build_report(tmp_path / "r").keys

    assert (key.done, key.failed) == (2, 0)
    assert key.seconds == pytest.approx(seconds)
    assert seconds > 0


def test_time_lost_is_the_last_word_of_each_session_added_up(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a"])
    first = {"kind": "waiting", "session": 1.0}
    events(
        tmp_path / "r",
        {"at": 1, **first, "seconds": 5.0, "by_key": {"alice": 5.0}},
        {"at": 2, **first, "seconds": 9.0, "by_key": {"alice": 6.0, "bob": 3.0}},
        {"at": 3, "kind": "key", "name": "bob"},
        {"at": 4, "kind": "waiting", "session": 2.0, "seconds": 1.5, "by_key": {"bob": 1.0, "": 0.5}},
    )

    report = build_report(tmp_path / "r")

    assert report.waiting.seconds == 10.5
    assert report.waiting.by_key == {"alice": 6.0, "bob": 4.0, "": 0.5}
    assert [(key.name, key.waited) for key in report.keys] == [("alice", 6.0), ("bob", 4.0)]


@pytest.mark.parametrize("seconds", [None, "x", True, float("nan"), float("inf"), -3, [1]])
def test_a_waiting_record_that_makes_no_sense_counts_for_nothing(seconds: object) -> None:
    waiting = sum_waiting([{"kind": "waiting", "session": seconds, "seconds": seconds, "by_key": {"a": seconds}}])

    assert (waiting.seconds, waiting.by_key) == (0.0, {"a": 0.0})


def test_attempts_that_a_kill_cut_off_are_interrupted_also_after_the_next_start(tmp_path: Path) -> None:
    folder = crashed(tmp_path / "r")
    killed = build_report(folder)
    with Child(folder) as child:
        resumed = build_report(folder)
        child.let_go()

    assert (killed.interrupted, resumed.interrupted, build_report(folder).interrupted) == (1, 1, 1)
    assert (killed.attempts, resumed.attempts) == (4, 5)


# -- failures by cause ----------------------------------------------------------------------------------------------


def test_failures_of_one_cause_are_one_the_most_frequent_first(tmp_path: Path) -> None:
    run(tmp_path / "r", ["odd-1", *(f"bad-{n}" for n in range(5)), "odd-2"], workers=1)

    first, second = build_report(tmp_path / "r").failures

    assert (first.count, first.error_type, first.example) == (5, "ValueError", "bad-0")
    assert first.cause == "<item>: no <quoted> in <path>, line <n>"
    assert first.text == "bad-0: no 'fieldbad-0' in /data/bad-0.json, line 5"
    assert (second.count, second.error_type) == (2, "KeyError")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("line 3 of 17", "line 4 of 9"),
        ("took 3.25s", "took 11.5s"),
        ("no file /a/b/c.txt here", "no file /x/y here"),
        ("no file '/a b/c' here", "no file 'd' here"),
        ('unknown name "x"', 'unknown name "a longer one"'),
        ("request req_011CabXYZ9 failed", "request req_98ZZyx01qq failed"),
        ("object at 0x7f00aa", "object at 0x1"),
        ("job 3f2504e0-4f89-11d3-9a0c-0305e82c3301 gone", "job 3f2504e0-4f89-11d3-9a0c-0305e82c3302 gone"),
        ("GET https://a.example/1?x=y failed", "GET https://b.example/ failed"),
        ("10:32:01 timeout", "23:59:59 timeout"),
        ("row12 of doc-7", "row345 of doc-8"),
    ],
)
def test_texts_that_differ_only_in_particulars_have_one_cause(one: str, other: str) -> None:
    assert normalize_error(one) == normalize_error(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("exit 1: no luck", "exit 2: no luck"),
        ("Error code: 429 - slow down", "Error code: 500 - slow down"),
        ("HTTP 404", "HTTP 403"),
        ("killed by SIGSEGV", "killed by SIGKILL"),
        ("can't open it", "can't close it"),
        ("sqlite3 is gone", "sqlite4 is gone"),
    ],
)
def test_texts_that_say_something_else_have_another(one: str, other: str) -> None:
    assert normalize_error(one) != normalize_error(other)


@given(st.text(max_size=2_000), st.text(max_size=20))
def test_any_text_has_a_cause_of_bounded_length_on_one_line(text: str, item_id: str) -> None:
    cause = normalize_error(text, item_id)

    assert len(cause) <= 300
    assert len(cause.splitlines()) <= 1


def test_more_causes_than_can_be_kept_are_counted_together() -> None:
    causes = FailureCauses(most=2)
    for text in ("one", "two", "three", "four", "one"):
        causes.add("x", text, None)

    assert [(each.cause, each.count) for each in causes.list_groups()] == [("one", 2), ("two", 1)]
    assert causes.others == 2


def test_a_failure_without_a_text_is_a_failure() -> None:
    causes = FailureCauses()
    causes.add("x", None, None)

    assert causes.list_groups()[0].text == "no reason was recorded"


# -- damage and strange folders -------------------------------------------------------------------------------------


def test_of_a_damaged_journal_the_sound_beginning_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run(folder, [f"item-{n:03}" for n in range(400)])
    database = locate_files(folder).db
    flip_bit(database, 8 * (database.read_bytes().rindex(b"item-2") + 3))
    before = fingerprints(folder)

    report = build_report(folder)

    assert report.damage is not None
    assert report.total is None or report.total >= report.counts["done"]
    assert report.counts["done"] < 400
    assert fingerprints(folder) == before


def test_a_folder_without_a_journal_is_told_as_not_begun(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()

    with pytest.raises(JournalUnavailable, match="has not started"):
        build_report(tmp_path / "r")
    assert str(build_summary(tmp_path / "r").state) == "not started"


def test_a_file_that_is_no_journal_is_refused_and_one_line_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "journal.sqlite").write_text("a shopping list, not a database")

    with pytest.raises(NotAJournal):
        build_report(folder)
    brief = build_summary(folder)
    assert brief.state.word == "unreadable"
    assert "file is not a database" in str(brief.problem)


def test_a_journal_of_another_kind_of_database_does_not_stop_the_list(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    connection = sqlite3.connect(folder / "journal.sqlite")
    connection.execute("create table entries(seq)")
    connection.close()

    assert build_summary(folder).state.word == "unreadable"


def test_a_report_is_json(tmp_path: Path) -> None:
    stop_after(tmp_path / "r", ["a", "bad-ü\ud800", "c"], 2)
    card(tmp_path / "r", "items.txt", "--", "echo", "{}", cwd=tmp_path)

    found = json.loads(json.dumps(build_report(tmp_path / "r").as_json(), allow_nan=False))

    assert found["counts"]["done"] == 1
    assert found["state"]["text"] == "stopped by shutdown()"
    assert found["left"] == 1
    assert found["card"]["arguments"] == ["items.txt", "--", "echo", "{}"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "{}", '{"name": 1, "cwd": "", "arguments": []}', "[" * 5_000]
)
def test_a_card_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)

    assert read_card(tmp_path) is None


# -- items one by one -----------------------------------------------------------------------------------------------


def test_every_item_is_listed_once_with_its_state(tmp_path: Path) -> None:
    folder = crashed(tmp_path / "r")

    found = {item.id: (item.state, item.begun) for item in list_items(locate_files(folder))}

    assert found == {
        "a": ("done", True),
        "b": ("done", True),
        "bad-1": ("failed", True),
        "slow": ("running", True),
        "later": ("pending", False),
    }


@pytest.mark.parametrize(("state", "ids"), [("failed", ["bad-1"]), ("pending", ["later"]), ("parked", [])])
def test_items_of_one_state_are_listed(tmp_path: Path, state: str, ids: list[str]) -> None:
    folder = crashed(tmp_path / "r")

    assert [item.id for item in list_items(locate_files(folder), state)] == ids


def test_more_items_than_a_page_are_all_listed(tmp_path: Path) -> None:
    run(tmp_path / "r", [f"item-{n}" for n in range(2_345)], workers=4)

    assert len({item.id for item in list_items(locate_files(tmp_path / "r"))}) == 2_345


def test_an_item_is_found_by_its_id_or_the_beginning_of_it_begun_or_not(tmp_path: Path) -> None:
    stop_after(tmp_path / "r", ["it", "item-1", "item-10", "other", "later-%_"], 2)
    files = locate_files(tmp_path / "r")

    assert find_ids(files, "it") == ["it"]
    assert find_ids(files, "item-1") == ["item-1"]
    assert find_ids(files, "item-10") == ["item-10"]
    assert sorted(find_ids(files, "item")) == ["item-1", "item-10"]
    assert find_ids(files, "oth") == ["other"]
    assert find_ids(files, "later-%") == ["later-%_"]
    assert find_ids(files, "%") == []


def test_what_an_item_ended_with_is_answered_by_its_id(tmp_path: Path) -> None:
    stop_after(tmp_path / "r", ["a", "bad-1", "c"], 2)
    files = locate_files(tmp_path / "r")

    answers = [
        (build_end_check(files, "done")(each), build_end_check(files, "failed")(each)) for each in ("a", "bad-1", "c")
    ]

    assert answers == [(True, False), (False, True), (False, False)]
    assert not build_end_check(locate_files(tmp_path / "nothing"), "done")("a")


def test_the_newest_of_an_item_is_told_with_its_error(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a", "bad-1"])
    files = locate_files(tmp_path / "r")

    last = find_last_entry(files, "bad-1")

    assert last is not None
    assert (last.state, last.error_type, last.final) == ("failed", "ValueError", True)
    assert "Traceback" in str(last.traceback)
    assert find_last_entry(files, "bad-1", after=last.seq) is None
    assert find_last_entry(files, "never heard of") is None


def test_ids_that_a_journal_cannot_hold_are_counted_once(tmp_path: Path) -> None:
    stop_after(tmp_path / "r", ["a\0b", "c\0d"], 1)

    assert counts(tmp_path / "r") == {"done": 1, "pending": 1}
    assert len(list(list_items(locate_files(tmp_path / "r")))) == 2


def test_ids_are_text_whatever_the_items_are(tmp_path: Path) -> None:
    run(tmp_path / "r", [1, 2, 3], lambda item, credential: by_fate(by_name(item), credential))

    assert find_ids(locate_files(tmp_path / "r"), "2") == ["2"]
