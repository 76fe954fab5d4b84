"""The tables of agent programs, held against what the real programs were seen to send."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentos.agents.programs import PROGRAMS, find_program
from agentos.cli.config.run_options import PROGRAM_NAMES

from .real_programs import EXECUTABLES

HABITS: dict[str, list[dict[str, Any]]] = json.loads((Path(__file__).parent / "recorded" / "habits.json").read_text())
URL, TOKEN = "http://127.0.0.1:8089", "token-of-the-gateway"


def test_the_command_knows_the_names_of_all_tables() -> None:
    assert tuple(PROGRAMS) == PROGRAM_NAMES


@pytest.mark.parametrize("name", EXECUTABLES)
def test_a_program_is_recognised_by_its_name_in_any_folder(name: str) -> None:
    assert find_program(name) is find_program(f"/usr/local/bin/{name}") is PROGRAMS[name]


@pytest.mark.parametrize("argv0", ["", "claude-wrapper", "sh", "/opt/claude/run", "openai"])
def test_another_program_is_not_recognised(argv0: str) -> None:
    assert find_program(argv0) is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_table_gives_address_and_token_and_leaves_no_placeholder(name: str) -> None:
    program = PROGRAMS[name]
    variables, flags = program.environment(f"{URL}/", TOKEN), program.arguments(f"{URL}/", TOKEN)

    text = json.dumps([variables, flags])
    assert URL in text
    assert f"{URL}//" not in text
    assert TOKEN in json.dumps(variables)
    assert not re.search(r"\{(url|token)\}", text)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_token_is_never_in_the_arguments_that_others_can_read(name: str) -> None:
    assert TOKEN not in json.dumps(PROGRAMS[name].arguments(URL, TOKEN))


@pytest.mark.parametrize("name", HABITS)
def test_the_real_program_sent_its_token_and_what_the_table_says(name: str) -> None:
    program, requests = PROGRAMS[name], HABITS[name]
    asks = [each for each in requests if each["method"] == "POST"]

    assert asks
    assert all("TOKEN" in json.dumps(each["headers"]) for each in asks)
    for each in asks:
        agent = each["headers"].get("user-agent", "")
        assert not program.user_agents or agent.startswith(program.user_agents)
    for header in program.session_headers:
        assert "ID" in asks[-1]["headers"][header]


def test_the_recording_has_every_program_that_can_be_installed() -> None:
    assert set(HABITS) == set(EXECUTABLES)
