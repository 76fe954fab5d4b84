"""The real programs are parked, killed and resumed in the same session. Run by ``make test-agents``."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from agentos.simulator import Latency, equal_keys
from tests.agents.recorder import Recording
from tests.agents.turns import CALL, call_tool, limit

from .machine import PATIENCE, PROGRAMS, Machine, machine, until

LIMIT = 15  # seconds, long enough to be found parked on a busy machine
RESUME_PROMPT = b"where you left off"


def check_resumed(user: Machine, kept: Recording, *, with_call: bool) -> None:
    """The provider sees the history in the last request, and the journal has the same session all along."""
    (value,) = user.rows("done")
    (body,) = kept.arrived[-1:]
    assert b"ALPHA" in body
    assert RESUME_PROMPT in body
    assert (CALL.encode() in body) == with_call
    sessions = {row["session"] for row in user.rows("agent_session") if row["session"] is not None}
    assert sessions == {value["session"]}
    assert value["resumes"] >= 1
    assert value["answer"].startswith("Simulated answer")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("killed", [False, True], ids=["in-one-run", "after-kill-9"])
def test_a_parked_item_resumes_in_the_same_session_after_the_reset(name: str, killed: bool, tmp_path: Path) -> None:
    with machine(tmp_path, name) as (user, kept):
        kept.turns += [call_tool(name), limit(name, LIMIT)]
        words = user.words("--park-after", "1s")
        driver = user.start(words)
        until(lambda: user.rows("limited"), driver)
        assert user.find_agents() == []
        if killed:
            driver.send_signal(signal.SIGKILL)
            driver.communicate()
            ended = user.run(words)
            assert ended.returncode == 0, ended.stderr
        else:
            _, errors = driver.communicate(timeout=PATIENCE)
            assert driver.returncode == 0, errors

    assert user.rows("limited")[0]["ending"] == "parked"
    assert len(kept.arrived) == 3  # the tool call, the limit, and after it the answer
    check_resumed(user, kept, with_call=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_item_that_is_parked_on_its_first_call_goes_on_after_the_reset(name: str, tmp_path: Path) -> None:
    with machine(tmp_path, name) as (user, kept):
        kept.turns.append(limit(name, LIMIT))
        ended = user.run(user.words("--park-after", "1s"))

    assert ended.returncode == 0, ended.stderr
    assert user.rows("limited")[0]["ending"] == "parked"
    if name != "gemini":
        check_resumed(user, kept, with_call=False)
        return
    # It takes back a prompt that got no answer, and keeps no session without one: another begins, with that prompt.
    assert b"ALPHA" in kept.arrived[-1]
    assert RESUME_PROMPT not in kept.arrived[-1]
    assert user.rows("done")[0]["resumes"] == 0


def test_a_resume_that_is_refused_again_is_not_counted_and_tokens_count_once(tmp_path: Path) -> None:
    with machine(tmp_path, "claude") as (user, kept):
        kept.turns += [call_tool("claude"), limit("claude", 2), limit("claude", 2)]
        ended = user.run(user.words("--park-after", "1s", "--resumes", "1", "--after", "true"))

    assert ended.returncode == 0, ended.stderr
    (value,) = user.rows("done")
    assert value["resumes"] == 1
    *_, session = user.rows("agent_session")  # what the program counted
    (path,) = user.project.glob(".agentos/runs/*/results.jsonl")
    assert session["used"] == json.loads(path.read_text())["usage"]  # what the gateway counted
    check_resumed(user, kept, with_call=True)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("victim", ["agentos", "program"])
def test_what_is_killed_in_the_middle_of_a_call_resumes_its_session(name: str, victim: str, tmp_path: Path) -> None:
    plan = equal_keys(1, latency=Latency(median=5.0, sigma=0.0))
    with machine(tmp_path, name, plan=plan) as (user, kept):
        kept.turns.append(call_tool(name))
        words = user.words("--retries", "1")
        driver = user.start(words)
        until(lambda: len(kept.arrived) == 2 and user.has_kept(CALL.encode()), driver)
        if victim == "agentos":
            driver.send_signal(signal.SIGKILL)
            driver.communicate()
            ended = user.run(words)
            assert ended.returncode == 0, ended.stderr
        else:
            for process in user.find_agents():
                os.kill(process, signal.SIGKILL)
            _, errors = driver.communicate(timeout=PATIENCE)
            assert driver.returncode == 0, errors
            (row,) = user.rows("retry")
            assert row["ending"] == "failed"

    check_resumed(user, kept, with_call=True)
