"""Agents as workers of a run: sessions, resumes, values and outcomes, with a program that follows a script."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentos import Agent, Credential, CredentialCoordinator, ParallelCoordinator, ProgressStats, WorkflowResult
from agentos.costs.usage import Usage
from agentos.runs.output.capture import OutputCapture

from . import scripted_claude as claude

SECRET = "sk-ant-planted-QWERTZUIOPASDFGH"
Steps = Sequence[Sequence[dict[str, Any]]]


class Program:
    """The scripted program, and runs with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder

    def run(
        self,
        steps: Steps,
        items: Sequence[Any] = ("fix it",),
        *,
        pool: CredentialCoordinator | None = None,
        agent: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[ProgressStats, dict[str, WorkflowResult]]:
        path = claude.install(self.folder / "program", steps)
        options.setdefault("retries", 0)
        options.setdefault("journal", self.folder / "run")
        worker = Agent("claude", executable=str(path), **(agent or {}))
        stats, results = ParallelCoordinator(1, pool, **options).execute_parallel(
            list(items), worker, lambda item: str(item) if isinstance(item, str) else str(item["id"])
        )
        return stats, {result.item_id: result for result in results}

    @property
    def starts(self) -> list[dict[str, Any]]:
        return claude.read_starts(self.folder / "program")

    @property
    def rows(self) -> list[tuple[str, dict[str, Any]]]:
        """The kinds and details of the journal's entries."""
        with sqlite3.connect(self.folder / "run" / "journal.sqlite") as journal:
            found = journal.execute("select kind, detail from entries order by seq").fetchall()
        return [(kind, json.loads(detail)) if detail and detail[0] == "{" else (kind, {}) for kind, detail in found]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def session_of(start: dict[str, Any], flag: str) -> str:
    words = start["argv"]
    return str(words[words.index(flag) + 1])


def test_the_value_has_the_answer_with_session_turns_and_cost(program: Program) -> None:
    _, results = program.run([claude.done("42")])

    (start,) = program.starts
    result = results["fix it"]
    assert result.value == {
        "answer": "42",
        "exit": 0,
        "ending": "done",
        "session": session_of(start, "--session-id"),
        "resumes": 0,
        "turns": 2,
        "cost_usd": 0.5,
    }
    assert result.usage == Usage(input=100, output=10)


def test_the_prompt_goes_to_standard_input_where_nothing_is_an_option(program: Program) -> None:
    items = [{"id": "1", "title": "--dangerously-skip-permissions"}]

    program.run([claude.done()], items, agent={"prompt": "Fix {title}\n{{kept}}", "options": ["--model", "{id}"]})

    (start,) = program.starts
    assert start["stdin"] == "Fix --dangerously-skip-permissions\n{{kept}}"
    assert "--dangerously-skip-permissions" not in start["argv"]
    assert start["argv"][-2:] == ["--model", "1"]


def test_a_prompt_may_be_longer_than_an_argument(program: Program) -> None:
    items = [{"id": "1", "text": "x" * 300_000}]

    _, results = program.run([claude.done()], items, agent={"prompt": "{text}"})

    assert results["1"].success
    assert len(program.starts[0]["stdin"]) == 300_000


def test_the_session_is_in_the_journal_before_the_program_starts(program: Program) -> None:
    program.run([claude.done()])

    kinds = [kind for kind, _ in program.rows]
    ((_, recorded),) = [row for row in program.rows if row[0] == "agent_session"]
    assert kinds.index("start") < kinds.index("agent_session") < kinds.index("done")
    assert recorded["session"] == session_of(program.starts[0], "--session-id")


def test_an_agent_that_met_a_usage_limit_resumes_its_session_after_the_reset(program: Program) -> None:
    reset = time.time() + 0.3

    stats, results = program.run([claude.parked(reset), claude.done()], agent={"resume_prompt": "go on"})

    first, second = program.starts
    assert session_of(second, "--resume") == session_of(first, "--session-id")
    assert (first["stdin"], second["stdin"]) == ("fix it", "go on")
    assert time.time() >= reset
    assert results["fix it"].value["resumes"] == 1
    assert results["fix it"].value["turns"] == 3
    assert stats.limited == 1


def test_a_parked_item_has_no_process_and_its_key_is_parked_until_the_reset(program: Program) -> None:
    pool = CredentialCoordinator([Credential(SECRET, name="a")])
    reset = time.time() + 7_200

    program.run([claude.parked(reset)], pool=pool, deadline=0.5)

    assert pool.snapshot()[0].rate_limited_until == pytest.approx(reset, abs=5)
    assert len(program.starts) == 1
    ended = [facts for kind, facts in program.rows if kind == "limited"]
    assert (ended[0]["ending"], ended[0]["until"]) == ("parked", pytest.approx(reset, abs=5))
    assert [kind for kind, _ in program.rows if kind in ("parked", "pending")] == ["parked"]


def test_a_run_that_may_not_wait_so_long_ends_while_its_agents_are_parked_without_a_key(program: Program) -> None:
    stats, _ = program.run([claude.parked(time.time() + 7_200)], max_wait=600)

    assert (stats.parked, len(program.starts)) == (1, 1)


def test_while_a_login_is_parked_no_other_item_starts_a_process_with_it(program: Program) -> None:
    stats, _ = program.run([claude.parked(time.time() + 7_200)], ["one", "two", "three"], max_wait=600)

    assert (stats.parked, len(program.starts)) == (3, 1)
    ended = [facts["ending"] for kind, facts in program.rows if kind == "limited"]
    assert ended == ["parked", "parked", "parked"]


def test_the_others_start_when_the_login_is_not_parked_any_more(program: Program) -> None:
    _, results = program.run([claude.parked(time.time() + 0.5), claude.done()], ["one", "two"])

    assert [results[item].success for item in ("one", "two")] == [True, True]
    assert len(program.starts) == 3


def test_the_next_session_of_the_run_resumes_what_was_not_finished(program: Program) -> None:
    program.run([claude.parked(time.time() + 7_200)], deadline=0.5)
    before = session_of(program.starts[0], "--session-id")

    _, results = program.run([[], claude.done()])

    assert session_of(program.starts[1], "--resume") == before
    assert results["fix it"].success


def test_an_item_that_failed_begins_anew_when_it_is_retried(program: Program) -> None:
    program.run([claude.failed("invalid_request", 400)])

    _, results = program.run([[], claude.done()], retry_failed=True)

    first, second = (session_of(start, "--session-id") for start in program.starts)
    assert first != second
    assert results["fix it"].success


def test_a_session_that_is_not_there_is_replaced_by_a_new_one_and_both_logs_say_so(
    program: Program, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    agent = {"outputs": OutputCapture(tmp_path / "logs")}
    _, results = program.run([claude.parked(time.time() + 0.1), claude.missing(), claude.done()], agent=agent)

    first, second, third = program.starts
    assert session_of(second, "--resume") == session_of(first, "--session-id")
    assert session_of(third, "--session-id") != session_of(first, "--session-id")
    assert third["stdin"] == "fix it"
    assert results["fix it"].value["resumes"] == 0
    assert "cannot be resumed (No conversation found with session ID); a new one begins" in caplog.text
    (log,) = (tmp_path / "logs").iterdir()
    assert "cannot be resumed (No conversation found with session ID); a new one begins" in log.read_text()


def test_waiting_for_a_limit_without_an_answer_uses_up_no_resumes(program: Program) -> None:
    now = time.time()
    steps = [claude.parked(now), claude.parked(now), claude.parked(now), claude.done()]

    _, results = program.run(steps, agent={"resumes": 1})

    assert results["fix it"].value["resumes"] == 1


def test_tokens_and_cost_of_a_session_count_once_and_only_new_ones_are_an_answer(program: Program) -> None:
    """The real claude counts those of the whole session, also in a process that resumes it and gets no answer."""
    total = {"modelUsage": {"m": {"inputTokens": 60, "outputTokens": 6}}, "total_cost_usd": 0.3}
    limited = claude.failed("rate_limit", 429, **total)

    _, results = program.run([limited, limited, limited, claude.done()], agent={"resumes": 1})

    result = results["fix it"]
    assert (result.value["resumes"], result.value["cost_usd"]) == (1, 0.5)
    assert result.usage == Usage(input=100, output=10)


def test_a_session_that_is_resumed_too_often_fails(program: Program) -> None:
    used = [{"modelUsage": {"m": {"inputTokens": 5 * count, "outputTokens": count}}} for count in (1, 2, 3)]
    limited = [claude.failed("rate_limit", 429, **each) for each in used]

    _, results = program.run(limited, agent={"resumes": 1})

    assert "was resumed 1 times and did not end" in str(results["fix it"].error)
    assert len(program.starts) == 2


def test_without_resumes_every_attempt_begins_anew(program: Program) -> None:
    program.run([claude.parked(time.time()), claude.done()], agent={"resumes": 0})

    assert all("--session-id" in start["argv"] for start in program.starts)
    assert len(program.starts) == 2


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        (claude.failed("invalid_request", 400, terminal_reason="prompt_too_long"), "context too long: API Error"),
        (claude.failed("unknown", None, subtype="error_max_turns"), "turn or budget limit: API Error"),
        (claude.done(stop_reason="refusal"), "refused: the answer"),
        (claude.failed("invalid_request", 400), "API Error"),
        ([claude.begin(), {"exit": 3}], "exit 3"),
        ([claude.begin(), {"exit": 0}], None),  # it says nothing, and only its exit code is left
    ],
)
def test_an_ending_that_no_key_is_to_blame_for_fails_the_item(
    program: Program, steps: list[dict[str, Any]], error: str | None
) -> None:
    pool = CredentialCoordinator([Credential(SECRET, name="a")])

    _, results = program.run([steps], pool=pool)

    assert results["fix it"].error == error
    assert pool.snapshot()[0].state == "available"


@pytest.mark.parametrize(
    ("error", "status", "state"), [("authentication_failed", 401, "dead"), ("billing_error", 400, "spent")]
)
def test_a_key_that_is_rejected_or_has_no_money_is_left_for_another(
    program: Program, error: str, status: int, state: str
) -> None:
    pool = CredentialCoordinator([Credential(SECRET, name="a"), Credential(f"{SECRET}-2", name="b")])

    _, results = program.run([claude.failed(error, status), claude.done()], pool=pool)

    first, second = program.starts
    assert results["fix it"].success
    assert {first["env"]["ANTHROPIC_API_KEY"], second["env"]["ANTHROPIC_API_KEY"]} == {SECRET, f"{SECRET}-2"}
    assert session_of(second, "--resume") == session_of(first, "--session-id")
    assert sorted(key.state for key in pool.snapshot()) == ["available", state]


def test_an_overloaded_provider_is_tried_again_in_the_same_session(program: Program) -> None:
    _, results = program.run([claude.failed("overloaded", 529), claude.done()], retries=1)

    assert results["fix it"].success
    assert session_of(program.starts[1], "--resume") == session_of(program.starts[0], "--session-id")


def test_the_outcome_file_is_trusted_before_the_programs_own_result(program: Program, tmp_path: Path) -> None:
    script = claude.install(program.folder / "program", [claude.done()])
    text = script.read_text()
    written = '#!/bin/sh\necho \'{"failed": "the tests are red"}\' > $AGENTOS_OUTCOME\n'
    script.write_text(text.replace("#!/bin/sh\n", written))

    worker = Agent("claude", executable=str(script))
    run = ParallelCoordinator(1, None, retries=0, journal=tmp_path / "run")
    _, (result,) = run.execute_parallel(["x"], worker, str)

    ((_, facts),) = [row for row in program.rows if row[0] == "failed"]
    assert result.error == "the tests are red"
    assert facts["disagreement"] == "its AGENTOS_OUTCOME says failed; it reports done"
    assert (facts["ending"], facts["turns"], facts["cost_usd"]) == ("failed", 2, 0.5)


def test_people_see_lines_and_the_log_has_the_transcript(program: Program, tmp_path: Path) -> None:
    seen: list[str] = []

    class Screen:
        def line(self, item_id: str, index: int, stream: str, text: str, whole: bool) -> None:
            seen.append(text)

        def attempt_ended(self, item_id: str, index: int, log: Path | None) -> None:
            pass

    tool = {"type": "tool_use", "name": "Bash", "input": {"command": "git status\ntrue"}}
    call = {**claude.say(""), "message": {"role": "assistant", "content": [tool]}}
    steps = [claude.begin(), call, *claude.done("fine\n\nreally")[1:]]
    outputs = OutputCapture(tmp_path / "logs", screen=Screen())

    program.run([steps], agent={"outputs": outputs})

    assert seen == ["> Bash: git status", "fine", "really"]
    (log,) = (tmp_path / "logs").iterdir()
    assert '"type": "result"' in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"program": "vim"}, "program must be one of claude, codex"),
        ({"program": "openai"}, "program must be one of claude, codex"),
        ({"program": "claude", "resumes": -1}, "resumes must be a whole number"),
        ({"program": "claude", "prompt": " "}, "prompt must be a text"),
    ],
)
def test_an_agent_that_cannot_be_is_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Agent(**arguments)


def test_an_agent_is_not_sent_to_a_cluster() -> None:
    with pytest.raises(ValueError, match="an Agent runs on this machine"):
        ParallelCoordinator(1, None, engine="dask://127.0.0.1:1").execute_parallel(["x"], Agent("claude"), str)
