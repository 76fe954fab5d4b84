"""`agentos show` as text and as JSON."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentos import Command, Context, Credential, CredentialCoordinator, ParallelCoordinator, Usage
from agentos.cli.commands.show import show
from agentos.cli.terminal.phrases import Paint, align_table, format_ago
from agentos.cli.terminal.report_text import format_report, kept_arguments
from agentos.cli.usage_error import UsageError
from agentos.runs.report.run_report import build_report
from agentos.runs.report.status import RunStatus
from agentos.util.durations import format_duration

from ...runs import sample_runs
from ...runs.sample_runs import SECRETS, Child, card, crashed, events, run, stop_after
from ..invoke import call

WHY = "KeyError: 'weather' (runs/sample_runs.py:29 in by_fate)"


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTOS_BASE_DIR", str(tmp_path / ".agentos"))
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path / ".agentos"


def at(base: Path, name: str = "nightly") -> Path:
    return base / "runs" / name


def shown(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    capsys.readouterr()
    assert call(show, *typed) == 0
    return capsys.readouterr().out


def next_commands(out: str) -> list[str]:
    lines = out.splitlines()
    return [line.split("  # ")[0].strip() for line in lines[lines.index("next:") + 1 :]]


def test_the_whole_of_a_run_that_was_stopped(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(at(base), ["a", "bad-1", "bad-2", "odd-1", "e", "f"], 5)
    card(at(base), "items.txt", "--fresh", "-j", "2", "--", "echo", "a b", "--fresh", cwd=base.parent)
    refused = {"name": "bob", "state": "dead", "why": "body error.code: invalid_api_key; status 401", "at": None}
    facts = {"ran": 400.0, "still": {"cooling": 192.0}, "keys": 3, "cooling": {"alice": 192.0}, "refused": [refused]}
    events(at(base), {"kind": "waiting", "session": 1, "seconds": 192.0, "by_key": {"alice": 192.0}, **facts})

    out = shown(capsys, "nightly")

    lines = out.splitlines()
    assert lines[0] == "nightly: stopped by shutdown(), just now"
    assert lines[1].startswith("  results: ")
    assert lines[2] == "  2 of 6 done, 3 failed, 1 left (1 not begun)"
    assert lines[4].startswith("  item duration p50 ")
    assert "3 failures, by cause" in lines
    cause = lines.index("  2  ValueError: bad-1: no 'fieldbad-1' in /data/bad-1.json, line 5")
    assert lines[cause + 1 : cause + 4] == [
        "     runs/sample_runs.py:27 in by_fate, e.g. bad-1",
        "  1  KeyError: 'weather'",
        "     runs/sample_runs.py:29 in by_fate, e.g. odd-1",
    ]
    assert "  stood still 3 min of 7 min: all 3 keys cooling down" in lines
    assert "  key bob: rejected (401 invalid_api_key) before this start" in lines
    assert "  alice     0       0             0         0          0   0 s  3 min 12 s" in lines
    assert "  pending  f" in lines
    assert next_commands(out) == [
        "agentos run items.txt -j 2 -- echo 'a b' --fresh",
        "agentos retry nightly",
        "agentos logs nightly bad-1",
    ]
    assert "# run the unfinished item and retry the 3 failed ones" in out


def test_the_tokens_of_a_run_are_shown_in_all_and_for_each_key(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def worker(item: str, credential: str, context: Context) -> str:
        context.settle(input_tokens=1_000, output_tokens=5)
        return item

    at(base).parent.mkdir(parents=True)
    pool = CredentialCoordinator([Credential("sk-none", name="alice")])
    ParallelCoordinator(1, pool, journal=at(base)).execute_parallel(["a", "b"], worker, str)

    lines = shown(capsys, "nightly").splitlines()
    found = json.loads(shown(capsys, "nightly", "--json"))

    assert "  used 2,010 tokens: 2,000 in, 10 out" in lines
    head, row = (line.split() for line in lines[lines.index("keys") + 1 : lines.index("keys") + 3])
    assert (head[0], row[0], head[-1], row[-1]) == ("key", "alice", "tokens", "2,010")
    assert found["usage"] == found["keys"][0]["usage"] == Usage(input=2_000, output=10).to_json()


def test_the_hint_of_a_stopped_run_is_printed_in_full_on_its_own_lines(base: Path) -> None:
    stop_after(at(base), ["a", "b"], 1)
    why = f"{'a long story ' * 20}of keys; export them there; or use --ship-secrets"
    report = replace(build_report(at(base)), state=RunStatus("stopped", why))

    lines = list(format_report(report, now=time.time(), paint=Paint(False), cwd="/"))

    assert lines[0].endswith("of keys, just now")
    assert lines[1:3] == ["  export them there", "  or use --ship-secrets"]


def test_a_finished_run_names_its_results_and_no_command_that_pays_again(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(at(base), ["a", "b"])
    card(at(base), "items.txt", "--", "true", cwd=base.parent)
    (at(base) / "results.jsonl").touch()

    lines = shown(capsys).splitlines()

    assert lines[0].startswith("nightly: finished, ")
    assert lines[1] == f"  results: {at(base)}/results.jsonl"
    assert " ".join(lines[-1].split()) == "agentos results nightly # all 2 done"
    assert json.loads(shown(capsys, "--json"))["results"] == f"{at(base)}/results.jsonl"


def test_a_run_that_was_stopped_after_its_last_item_is_not_to_be_resumed(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(at(base), ["a", "b"])
    card(at(base), "items.txt", "--", "true", cwd=base.parent)
    report = replace(build_report(at(base)), state=RunStatus("stopped", "SIGINT"))

    lines = list(format_report(report, now=time.time(), paint=Paint(False), cwd=str(base.parent)))

    assert next_commands("\n".join(lines)) == ["agentos results nightly"]


def test_a_run_that_is_on_says_so_and_how_to_watch_it(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Child(at(base)) as child:
        card(at(base), "items.txt", "--", "true", cwd=base.parent)
        out = shown(capsys)

        assert f"running as pid {child.pid}, for " in out
        assert "1 running" in out
        assert "agentos logs nightly slow -f" in out
        assert "retry" not in out


def test_a_crashed_run_says_so_and_how_to_go_on(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crashed(at(base))
    card(at(base), "items.txt", "--", "true", cwd=base.parent)

    out = shown(capsys, "nightly")

    assert out.startswith("nightly: crashed")
    assert "agentos run items.txt -- true" in out
    assert "resume with 2 items" in out
    assert "2 left (1 were running, 1 not begun)" in out


def test_a_run_started_from_python_offers_no_command_that_would_not_work(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(at(base), ["bad-1", "b"], 1)

    out = shown(capsys)

    assert "agentos retry" not in out
    assert "agentos run" not in out
    assert "agentos logs nightly bad-1" in out


def test_of_many_items_that_are_left_the_first_are_named(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(at(base), [f"i{n:02}" for n in range(1, 31)], 1)

    assert "  pending  i02, i03, i04, i05, i06, i07 and 23 more" in shown(capsys).splitlines()


def test_the_parts_of_the_attempts_name_the_interrupted_ones(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crashed(at(base))

    assert "  4 attempts: 1 interrupted\n" in shown(capsys)


@pytest.mark.parametrize(("texts", "shown_as"), [(["slow"] * 3, "slow"), (["a 1", "b 2", "b 3"], "most often: b <n>")])
def test_the_most_frequent_reason_of_retries_is_named(
    base: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    texts: list[str],
    shown_as: str,
) -> None:
    monkeypatch.setattr("agentos.runs.core.item_scheduler.retry_backoff", lambda tries, jitter: 0.0)
    left = list(texts)

    def work(item: str, credential: str | None) -> str:
        if left:
            raise TimeoutError(left.pop(0))
        return item

    run(at(base), ["a"], work, workers=1, retries=3)

    assert f"  4 attempts: 3 retried after an error ({shown_as})\n" in shown(capsys)


@pytest.mark.parametrize(("unanswered", "advised"), [(0, True), (1, True), (2, False)])
def test_more_keys_are_not_advised_where_most_attempts_got_no_answer(
    base: Path, capsys: pytest.CaptureFixture[str], unanswered: int, advised: bool
) -> None:
    def work(item: str, credential: str | None) -> str:
        if int(item) < unanswered:
            raise TimeoutError("timed out after 15s")
        return item

    run(at(base), ["0", "1", "2"], work, retries=0)
    events(at(base), {"kind": "waiting", "session": 1, "seconds": 192.0, "by_key": {"": 192.0}})

    assert ("workers waited for busy keys" in shown(capsys)) is advised


def test_a_cause_is_shown_as_it_is_where_all_its_failures_are_equal(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """echo "KeyError: 'missing-key'" >&2; exit 1"""
    run(at(base), ["a", "b"], Command(["sh", "-c", script]))  # type: ignore[arg-type]

    assert "  2  exit 1: KeyError: 'missing-key'\n" in shown(capsys)


def test_commands_can_be_typed_where_the_person_is(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(at(base), ["odd-1", "b"], 1)
    card(at(base), "items.txt", "--", "true", cwd=Path("/some where"))

    out = shown(capsys, "--dir", str(base))

    assert next_commands(out)[:2] == [
        f"cd '/some where' && agentos run items.txt --dir {base} -- true",  # else it would be another run, of all items
        f"agentos retry nightly --dir {base}",
    ]


def test_items_from_standard_input_are_asked_for_again(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(at(base), ["odd-1", "b"], 1)
    card(at(base), "-", "--name", "nightly", "--", "true", cwd=base.parent, source={"kind": "stdin", "name": "-"})

    out = shown(capsys)

    assert next_commands(out)[:2] == [
        "... | agentos run - --name nightly -- true",
        "... | agentos run - --name nightly --retry-failed -- true",
    ]


def test_a_run_that_was_set_aside_goes_on_under_its_new_name(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(at(base, "nightly.1"), ["a", "b"], 1)
    card(at(base, "nightly.1"), "items.txt", "--", "true", cwd=base.parent, name="nightly")

    assert next_commands(shown(capsys)) == ["agentos run items.txt --name nightly.1 -- true"]


def test_retry_continues_an_archived_run_and_not_the_one_with_its_old_name(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(at(base, "nightly.1"), ["a", "bad-1", "c"], 2)
    card(at(base, "nightly.1"), "items.txt", "--", "true", cwd=base.parent, name="nightly")

    assert next_commands(shown(capsys))[:2] == [
        "agentos run items.txt --name nightly.1 -- true",
        "agentos retry nightly.1",
    ]


def test_what_is_left_in_a_run_that_was_started_over_is_not_suggested(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be done in the run that replaced it."""
    stop_after(at(base, "nightly.1"), ["a", "odd-1", "c"], 2)
    card(at(base, "nightly.1"), "items.txt", "--", "true", cwd=base.parent, name="nightly")
    run(at(base), ["a", "odd-1", "c"])

    assert next_commands(shown(capsys, "nightly.1")) == ["agentos show nightly", "agentos logs nightly.1 odd-1"]


def test_an_item_that_was_refused_for_its_id_is_a_failed_one_without_a_log(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(at(base), iter(["a", "b", "a"]))
    source = {"kind": "stdin", "name": "-"}
    card(at(base), "-", "--name", "nightly", "--", "true", cwd=base.parent, source=source)

    out = shown(capsys)

    assert out.splitlines()[2] == "  2 of 3 done, 1 failed"
    assert "  1  duplicate id: an earlier item is 'a' too\n     e.g. a\n" in out
    assert next_commands(out) == ["... | agentos run - --name nightly --retry-failed -- true"]
    assert shown(capsys, "--failed") == "failed\ta\tduplicate id: an earlier item is 'a' too\n"


def test_as_json_it_is_one_object(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(at(base), ["a", "bad-1"], keys=SECRETS)

    found = json.loads(shown(capsys, "--json"))

    (failure,) = found["failures"]
    assert (found["name"], found["counts"]["done"], failure["count"]) == ("nightly", 1, 1)
    assert (failure["error_type"], failure["place"]) == ("ValueError", "runs/sample_runs.py:27 in by_fate")
    assert failure["error"] == "bad-1: no 'fieldbad-1' in /data/bad-1.json, line 5"
    assert failure["traceback"].endswith(f"ValueError: {failure['error']}\n")


def test_items_are_listed_one_a_line(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(at(base), ["a", "odd-1", "c"], 2)

    assert shown(capsys, "nightly", "--items").splitlines() == [
        "done\ta",
        f"failed\todd-1\t{WHY}",
        "pending (not begun)\tc",
    ]


@pytest.mark.parametrize(
    "typed",
    [
        ("nightly", "--items", "failed"),
        ("--items", "failed"),
        ("--failed",),
        ("nightly", "--failed"),
        ("nightly", "failed"),
        ("latest", "--items", "failed"),
    ],
)
def test_the_failed_ones_alone_are_listed(
    base: Path, capsys: pytest.CaptureFixture[str], typed: tuple[str, ...]
) -> None:
    stop_after(at(base), ["a", "odd-1", "c"], 2)

    assert shown(capsys, *typed).splitlines()[0] == f"failed\todd-1\t{WHY}"


def test_the_failed_ones_come_with_their_tracebacks(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(at(base), ["a", "odd-1", "c"], 2)

    first, *trace = shown(capsys, "--failed").splitlines()

    assert first == f"failed\todd-1\t{WHY}"
    assert trace[0] == "    Traceback (most recent call last):"
    assert trace[-3:] == [
        f'      File "{sample_runs.__file__}", line 29, in by_fate',
        '        raise KeyError("weather")',
        "    KeyError: 'weather'",
    ]
    assert shown(capsys, "--items", "failed").count("\n") == 1


def test_a_failed_command_comes_with_its_last_lines(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = "echo fine; echo first >&2; echo second >&2; echo more; exit 3"
    run(at(base), ["a"], Command(["sh", "-c", script]))  # type: ignore[arg-type]

    out = shown(capsys, "--failed")

    assert out == "failed\ta\texit 3: second\n    first\n    second\n"


def test_items_as_json_are_one_object_a_line(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(at(base), ["a", "odd-1", "c"], 2)

    found = [json.loads(line) for line in shown(capsys, "--items", "--json").splitlines()]

    assert [(item["id"], item["state"], item["begun"]) for item in found] == [
        ("a", "done", True),
        ("odd-1", "failed", True),
        ("c", "pending", False),
    ]
    assert (found[1]["error_type"], found[1]["error"]) == ("KeyError", "'weather'")
    assert found[1]["place"] == "runs/sample_runs.py:29 in by_fate"
    assert found[1]["traceback"].endswith("KeyError: 'weather'\n")


def test_a_state_that_does_not_exist_is_refused(base: Path) -> None:
    run(at(base), ["a"])

    with pytest.raises(UsageError, match="no state 'red'"):
        call(show, "nightly", "--items", "red")
    with pytest.raises(UsageError, match="--failed"):
        call(show, "nightly", "--failed", "done")


@pytest.mark.parametrize("typed", [(), ("--items",), ("--json",)])
def test_a_run_that_has_not_begun_is_refused_in_a_sentence(base: Path, typed: tuple[str, ...]) -> None:
    card(at(base), "items.txt", "--", "true", cwd=base.parent)

    with pytest.raises(UsageError, match="nightly has not begun"):
        call(show, *typed)


def test_ids_and_errors_cannot_steer_the_terminal(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_after(at(base), ["bad-\x1b[2J\nfake: all done", "\x1b]0;title\x07"], 1)

    out = shown(capsys) + shown(capsys, "--items")

    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\nfake" not in out


def test_colour_when_asked_for(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(at(base), ["a"])

    assert "\x1b[32mfinished\x1b[0m" in shown(capsys, "--color", "always")


def test_what_was_meant_for_one_start_is_not_repeated_and_the_command_is_left_alone() -> None:
    arguments = ("--fresh", "x.txt", "-n", "--retry-failed", "--", "grep", "-n", "{}")

    assert kept_arguments(arguments) == ["x.txt", "--", "grep", "-n", "{}"]
    assert kept_arguments(("--fresh", ":::", "-n")) == [":::", "-n"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (-3, "0 s"),
        (0.0312, "31 ms"),
        (0.0001, "0 s"),
        (0.254, "0.25 s"),
        (1.04, "1.0 s"),
        (9.97, "10 s"),
        (59.6, "1 min"),
        (192, "3 min 12 s"),
        (7_500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
        (86_400 + 59, "1 d"),
    ],
)
def test_durations_are_printed_with_a_useful_precision(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("before", "text"), [(3, "just now"), (150, "2 min ago"), (7_200, "2 h ago"), (200_000, "2 d ago")]
)
def test_how_long_ago(before: float, text: str) -> None:
    assert format_ago(1_000_000 - before, 1_000_000) == text


def test_a_table_is_aligned() -> None:
    assert align_table([("key", "n", "why"), ("alice", "1,000", "x")], right=(1,)) == [
        "key        n  why",
        "alice  1,000  x",
    ]
