"""What the journal of a run with an agent says about each item."""

from __future__ import annotations

from agentos.costs.usage import Usage
from agentos.runs.report.agent_items import AgentItem


def test_the_time_between_a_limit_and_the_next_start_is_waiting() -> None:
    item = AgentItem("a")

    item.add(10.0, "start", {}, None)
    item.add(12.0, "limited", {"ending": "parked", "resumes": 0, "turns": 1}, None)
    assert (item.ending, item.waited) == ("parked", 0.0)
    item.add(72.5, "start", {}, None)
    item.add(73.0, "gateway_request", {"waited": 1.5}, None)
    item.add(80.0, "done", {"ending": "done", "resumes": 1, "turns": 3, "cost_usd": 0.25}, None)

    assert (item.ending, item.resumes, item.turns, item.cost) == ("done", 1, 3, 0.25)
    assert item.waited == 62.0


def test_an_item_without_an_ending_has_its_state() -> None:
    item = AgentItem("a")

    item.add(1.0, "start", {}, None)
    assert item.ending == "running"
    item.add(2.0, "interrupted", {}, None)
    assert item.ending == "interrupted"


def test_facts_of_another_form_are_passed_over() -> None:
    item = AgentItem("a")

    item.add(1.0, "failed", {"ending": "failed", "resumes": "2", "turns": None, "tree": 5, "cost_usd": "x"}, "junk")

    assert item.as_json() == {
        "id": "a",
        "ending": "failed",
        "resumes": 0,
        "turns": 0,
        "usage": None,
        "cost_usd": None,
        "waited": 0.0,
        "tree": None,
        "disagreement": None,
    }


def test_the_usage_is_that_of_all_attempts() -> None:
    from agentos.runs.exports.usage_column import encode_usage

    item = AgentItem("a")
    used = Usage(input=5, output=2)

    item.add(1.0, "done", {"ending": "done"}, encode_usage(used, {"k": used}))

    assert item.usage == used
