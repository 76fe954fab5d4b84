"""Agents that write about limits, or print what looks like a structured event of their program, are never parked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentos.runs.agents.agent_protocol import Ending

from .transcripts import Transcript, load, load_all, read

PROSE = [
    "Claude AI usage limit reached|1762952400",
    "5-hour limit reached - resets 1am",
    "You've hit your limit - resets 1pm (Europe/Lisbon)",
    "You've hit your session limit - resets 8pm (America/New_York)",
    "You've hit your usage limit. Try again at 3:05 PM.",
    "API Error: 429 rate_limit_error: this request would exceed your rate limit",
    "exceeded retry limit, last status: 429 Too Many Requests",
    "Quota exceeded. Check your plan and billing details.",
    "RESOURCE_EXHAUSTED: please retry in 3600s",
    "Credit balance is too low",
    "HTTP/1.1 429 Too Many Requests\nRetry-After: 86400",
    "The server is overloaded (529). prompt is too long: 210000 tokens > 200000 maximum",
    "invalid x-api-key; 401 Unauthorized",
]
PLACES = ("answer", "text", "tool")
PROGRAMS = ("claude", "codex", "gemini", "opencode")


def events() -> list[str]:
    """The lines that the real programs print when they fail: each as the text of an agent."""
    found = []
    for transcript in load_all():
        if transcript.program in PROGRAMS and transcript.situation in ("usage-limit", "rejected", "spent", "context"):
            found += [line for line in transcript.stdout if '"error"' in line or '"result"' in line]
    login = load("claude", "usage-limit-login")
    return [*found, *login.stdout[1:]]


def write(program: str, text: str, place: str) -> list[dict[str, Any]]:
    """Events by which an agent shows *text*, before its last answer."""
    if program == "claude":
        session = json.loads(load("claude", "done").stdout[0])["session_id"]
        block: dict[str, Any] = {"type": "text", "text": text}
        if place == "tool":
            block = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": text}}
        message = {"role": "assistant", "content": [block]}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}
        common = {"session_id": session, "parent_tool_use_id": None}
        return [
            {"type": "assistant", "message": message, **common},
            {"type": "user", "message": result, "tool_use_result": text, **common},
        ]
    if program == "codex":
        item: dict[str, Any] = {"id": "i", "type": "agent_message", "text": text}
        if place == "tool":
            item = {"id": "i", "type": "command_execution", "command": text, "aggregated_output": text, "exit_code": 0}
        return [{"type": "item.completed", "item": item}]
    if program == "gemini":
        if place == "tool":
            return [
                {"type": "tool_use", "tool_name": "run", "tool_id": "t", "parameters": {"command": text}},
                {"type": "tool_result", "tool_id": "t", "status": "error", "output": text, "error": {"message": text}},
            ]
        return [{"type": "message", "role": "assistant", "content": text}]
    session = json.loads(load("opencode", "done").stdout[0])["sessionID"]
    part: dict[str, Any] = {"type": "text", "text": text}
    kind = "text"
    if place == "tool":
        kind, part = "tool_use", {"type": "tool", "tool": "bash", "state": {"input": {"command": text}, "output": text}}
    return [{"type": kind, "sessionID": session, "part": part}]


def answer_with(program: str, transcript: Transcript, text: str) -> Transcript:
    """The same transcript with *text* as the agent's last answer."""
    said = json.dumps(text)[1:-1]
    lines = [
        line.replace("Simulated answer 1.", said).replace("Simulated answer 2.", said) for line in transcript.stdout
    ]
    if program == "gemini":
        lines = [line for line in lines if '"delta"' not in line]
        lines.insert(-1, json.dumps({"type": "message", "role": "assistant", "content": text}))
    return replace(transcript, stdout=tuple(lines))


def build(texts: list[str], number: int) -> Iterator[tuple[str, str, str]]:
    for count in range(number):
        yield PROGRAMS[count % 4], PLACES[count // 4 % 3], texts[count // 2 % len(texts)]


CASES = [*build(PROSE, 100), *build(events(), 100)]


def test_there_are_two_hundred_of_which_a_hundred_are_look_alikes() -> None:
    assert len(CASES) == 200
    assert sum(text.startswith("{") for _, _, text in CASES) >= 100


@pytest.mark.parametrize(("program", "place", "text"), CASES, ids=[str(number) for number in range(len(CASES))])
def test_an_agent_that_writes_about_limits_is_done(program: str, place: str, text: str, tmp_path: Path) -> None:
    transcript = load(program, "done")
    if place == "answer":
        transcript = answer_with(program, transcript, text)
    else:
        first, *others = transcript.stdout
        written = [json.dumps(event) for event in write(program, text, place)]
        transcript = replace(transcript, stdout=(first, *written, *others))

    report, verdict, _ = read(transcript, tmp_path)

    assert (verdict.ending, verdict.until, report.resume_refused) == (Ending.DONE, None, False)
    if place == "answer":
        assert report.answer == text


@pytest.mark.parametrize("line", events())
def test_an_event_of_another_session_of_claude_is_ignored(line: str, tmp_path: Path) -> None:
    transcript = load("claude", "done")

    _, verdict, _ = read(replace(transcript, stdout=(*transcript.stdout, line)), tmp_path)

    assert verdict.ending is Ending.DONE
