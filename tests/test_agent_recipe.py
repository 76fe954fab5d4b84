"""The script of the recipe for coding agents reads claude's answers, whatever its exit code is."""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "examples" / "fix_issue.py"
USAGE = {"input_tokens": 4, "output_tokens": 9, "server_tool_use": {"web_search_requests": 0}}


def result(**fields: Any) -> dict[str, Any]:
    usual = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": "done",
        "session_id": "s",
        "usage": USAGE,
    }
    return usual | fields


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions of the script, in a folder with a clone of an origin."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTOS_OUTCOME", str(tmp_path / "outcome"))
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@b.c")
    git("init -q origin")
    git("-C origin commit -q --allow-empty -m first")
    git("clone -q origin trees/7")
    return runpy.run_path(str(SCRIPT))


def git(words: str) -> None:
    subprocess.run(["git", *words.split()], check=True)


def answering(recipe: dict[str, Any], answer: object, code: int = 0, first: str = "true") -> None:
    """Let the agent print *answer* and exit with *code*."""
    printed = answer if isinstance(answer, str) else json.dumps(answer)
    recipe["AGENT"][:] = ["sh", "-c", f"{first}; printf %s {shlex.quote(printed)}; exit {code}", "claude"]


def outcome() -> Any:
    path = Path("outcome")
    return json.loads(path.read_text()) if path.exists() else None


FORMS = [
    # What claude prints of an API error has the subtype success, and older versions exit with 0.
    (result(is_error=True, api_error_status=429, terminal_reason="api_error"), 0, 1, {"rate_limited": True}),
    (result(is_error=True, api_error_status=429, result="API Error: 429"), 1, 1, {"rate_limited": True}),
    (result(is_error=True, terminal_reason="blocking_limit"), 1, 1, {"rate_limited": True}),
    (result(is_error=True, result='API Error: 429 {"type":"error"}'), 0, 1, {"rate_limited": True}),
    ([{"type": "system"}, result(is_error=True, api_error_status=429)], 0, 1, {"rate_limited": True}),
    (result(is_error=True, api_error_status=401), 1, 1, {"rejected": "401"}),
    (result(is_error=True, api_error_status=529, result="API Error: 529 Overloaded"), 1, 75, {}),
    (result(is_error=True, subtype="error_max_turns", result=None), 0, 1, {}),
    (result(result="the API Error: 429 is fixed now"), 143, 1, {}),
]


@pytest.mark.parametrize(("answer", "code", "ends", "told"), FORMS)
def test_an_answer_that_is_an_error_fails_the_item_and_tells_about_the_key(
    recipe: dict[str, Any], answer: object, code: int, ends: int, told: dict[str, object]
) -> None:
    answering(recipe, answer, code)

    with pytest.raises(SystemExit) as exited:
        recipe["work"]("7", Path("trees/7"))

    assert exited.value.code == ends
    assert outcome() == told | {"usage": USAGE}


@pytest.mark.parametrize("printed", ["", "Killed", "[]", "null", "{}"])
def test_an_agent_without_an_answer_has_failed(recipe: dict[str, Any], printed: str) -> None:
    answering(recipe, printed)

    with pytest.raises(SystemExit) as exited:
        recipe["work"]("7", Path("trees/7"))

    assert exited.value.code == 1
    assert outcome() is None


def test_an_agent_that_commits_nothing_has_failed(recipe: dict[str, Any]) -> None:
    answering(recipe, result())

    with pytest.raises(SystemExit, match="committed nothing"):
        recipe["work"]("7", Path("trees/7"))


def test_an_agent_that_has_committed_is_done(recipe: dict[str, Any]) -> None:
    answering(recipe, result(), first="git commit -q --allow-empty -m fixed")

    assert recipe["work"]("7", Path("trees/7")) == result()
    assert outcome() == {"usage": USAGE}


@pytest.mark.parametrize("issue", ["../up", "-x", ".git", "a b", ""])
def test_an_issue_that_is_no_name_is_refused(recipe: dict[str, Any], issue: str) -> None:
    with pytest.raises(SystemExit, match="cannot be the name"):
        recipe["main"](issue)


def test_a_checkout_without_an_origin_is_refused_before_anything_is_paid(recipe: dict[str, Any]) -> None:
    git("init -q .")

    with pytest.raises(SystemExit, match="no origin"):
        recipe["main"]("8")
