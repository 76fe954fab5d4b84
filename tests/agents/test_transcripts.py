"""Every transcript that was recorded from the real programs is classified right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentos.costs.usage import Usage
from agentos.providers.wire_verdict import WireVerdict
from agentos.runs.agents.agent_protocol import Ending

from .situations import RESET_IN, SITUATIONS
from .transcripts import Transcript, load, load_all, read

E = Ending
# What the structure of each program tells, without the gateway. A program that is killed says nothing.
USUAL = {
    "done": E.DONE,
    "limited-short": E.DONE,
    "limited-long": E.LIMITED,
    "limited-unstated": E.LIMITED,
    "usage-limit": E.PARKED,
    "rejected": E.REJECTED,
    "spent": E.SPENT,
    "overloaded": E.OVERLOADED,
    "context": E.CONTEXT,
    "cut": E.OVERLOADED,
    "killed": E.FAILED,
}
EXPECTED = {
    # With an API key claude is told of no window; with a login it is.
    "claude": {**USUAL, "usage-limit": E.LIMITED, "usage-limit-login": E.PARKED},
    # Both wait for an hour by themselves; the recording ended them.
    "codex": {**USUAL, "cut": E.FAILED, "limited-long": E.FAILED},
    "opencode": {**USUAL, "limited-long": E.FAILED},
    # Its exit code has the status, which a lost connection has not.
    "gemini": {**USUAL, "usage-limit": E.LIMITED, "cut": E.FAILED},
    # These tell success from failure, and no more. qwen waits for a limit without end, goose for one with a long
    # Retry-After; the recording ended them.
    "qwen": {**dict.fromkeys(USUAL, E.FAILED), "done": E.DONE, "limited-short": E.DONE},
    "goose": {**dict.fromkeys(USUAL, E.FAILED), "done": E.DONE, "limited-short": E.DONE},
    # No structure at all, and exit code 0 for everything: only the gateway knows.
    "aider": {**dict.fromkeys(USUAL, E.DONE), "killed": E.FAILED},
}
# What the gateway sees in the same situations.
WIRE = {
    "limited-long": ("limited", E.LIMITED),
    "limited-unstated": ("limited", E.LIMITED),
    "usage-limit": ("parked", E.PARKED),
    "rejected": ("dead", E.REJECTED),
    "spent": ("spent", E.SPENT),
    "overloaded": ("busy", E.OVERLOADED),
    "cut": ("network", E.OVERLOADED),
    "context": ("context", E.CONTEXT),
}
ALL = list(load_all())


@pytest.mark.parametrize("transcript", ALL, ids=lambda transcript: transcript.id)
def test_a_recorded_transcript_is_classified_right(transcript: Transcript, tmp_path: Path) -> None:
    _, verdict, _ = read(transcript, tmp_path)

    assert verdict.ending is EXPECTED[transcript.program][transcript.situation]


@pytest.mark.parametrize("transcript", [each for each in ALL if each.situation in WIRE], ids=lambda each: each.id)
def test_with_the_gateway_every_program_is_classified_alike(transcript: Transcript, tmp_path: Path) -> None:
    why, ending = WIRE[transcript.situation]
    until = transcript.recorded_at + RESET_IN if why == "parked" else None

    _, verdict, _ = read(transcript, tmp_path, WireVerdict(why, 429, "model", until))

    assert verdict.ending is ending
    assert until is None or verdict.until == pytest.approx(until, abs=5)


@pytest.mark.parametrize("program", EXPECTED)
def test_every_situation_is_recorded_from_every_program(program: str) -> None:
    recorded = {each.situation for each in ALL if each.program == program}

    assert recorded == set(EXPECTED[program])
    assert recorded >= set(SITUATIONS)


@pytest.mark.parametrize("name", ["claude-usage-limit-login", "codex-usage-limit", "opencode-usage-limit"])
def test_a_parked_program_tells_when_its_limit_ends(name: str, tmp_path: Path) -> None:
    program, _, situation = name.partition("-")
    transcript = load(program, situation)

    _, verdict, _ = read(transcript, tmp_path)

    assert verdict.until == pytest.approx(transcript.recorded_at + RESET_IN, abs=5)


@pytest.mark.parametrize(
    ("program", "usage", "turns"),
    [
        ("claude", Usage(input=3914, output=16), 1),
        ("codex", Usage(input=7066, output=16), 1),
        ("gemini", Usage(input=5944, output=16), None),
        ("opencode", Usage(input=3029, output=16), 1),
    ],
)
def test_a_program_that_is_done_reports_answer_session_turns_and_usage(
    program: str, usage: Usage, turns: int | None, tmp_path: Path
) -> None:
    report, _, shown = read(load(program, "done"), tmp_path)

    assert report.answer is not None
    assert report.answer.startswith("Simulated answer")
    assert report.session is not None
    assert (report.usage, report.turns) == (usage, turns)
    assert shown == [report.answer]


@pytest.mark.parametrize("program", ["claude", "codex", "gemini", "opencode"])
def test_a_success_stands_whatever_the_wire_saw_and_the_disagreement_is_told(program: str, tmp_path: Path) -> None:
    _, verdict, _ = read(load(program, "done"), tmp_path, WireVerdict("limited", 429, "other"))

    assert verdict.ending is Ending.DONE
    assert verdict.disagreement == "it reports that it is done; its last call was refused: rate-limited (HTTP 429)"


def test_an_exit_code_of_0_does_not_make_a_reported_error_a_success(tmp_path: Path) -> None:
    _, verdict, _ = read(replace(load("claude", "rejected"), code=0), tmp_path)

    assert verdict.ending is Ending.REJECTED
    assert verdict.disagreement == "it reports key rejected; it ended with exit code 0"


@pytest.mark.parametrize(("code", "ended"), [(1, "ended with exit code 1"), (-9, "was killed by signal 9")])
def test_a_success_stands_whatever_the_exit_code_and_the_disagreement_is_told(
    code: int, ended: str, tmp_path: Path
) -> None:
    _, verdict, _ = read(replace(load("claude", "done"), code=code), tmp_path)

    assert verdict.ending is Ending.DONE
    assert verdict.disagreement == f"it reports that it is done; it {ended}"


@pytest.mark.parametrize("program", ["aider", "goose"])
def test_an_exit_code_of_0_after_a_refused_call_is_no_success(program: str, tmp_path: Path) -> None:
    _, verdict, _ = read(load(program, "rejected"), tmp_path, WireVerdict("dead", 401, "model"))

    assert verdict.ending is Ending.REJECTED


@pytest.mark.parametrize(
    ("program", "stdout"),
    [
        ("claude", ('{"type":"result","subtype":"error_during_execution","is_error":true,"session_id":"x"}',)),
        ("codex", ()),
        ("gemini", ()),
        ("opencode", ()),
        ("qwen", ()),
        ("goose", ()),
    ],
)
def test_a_session_that_is_not_there_is_told_apart_from_one_that_failed(
    program: str, stdout: tuple[str, ...], tmp_path: Path
) -> None:
    refused = Transcript(program, "refused", 1, stdout)

    assert read(refused, tmp_path, resumed="session-1")[0].resume_refused
    assert not read(refused, tmp_path)[0].resume_refused
    assert not read(replace(load(program, "rejected"), code=1), tmp_path, resumed="session-1")[0].resume_refused


def test_how_an_earlier_turn_of_codex_ended_is_not_the_ending_of_the_process_that_resumes_it(tmp_path: Path) -> None:
    limited = load("codex", "usage-limit")
    session = json.loads(limited.stdout[0])["thread_id"]

    killed = replace(limited, stdout=limited.stdout[:2], code=-9)

    assert read(killed, tmp_path)[1].ending is Ending.PARKED
    assert read(killed, tmp_path, resumed=session)[1].ending is Ending.FAILED


@pytest.mark.parametrize("program", ["claude", "codex", "gemini", "opencode", "qwen", "goose"])
@pytest.mark.parametrize("junk", ["{", "[]", "null", '{"type":5}', '{"type":"result"}', "{" * 5000, '{"type":"error"}'])
def test_a_line_of_an_unknown_form_is_passed_over(program: str, junk: str, tmp_path: Path) -> None:
    transcript = load(program, "done")
    first, *others = transcript.stdout

    report, verdict, _ = read(replace(transcript, stdout=(first, junk, *others)), tmp_path)

    assert verdict.ending is Ending.DONE
    assert report.answer is not None
