"""The outcome that a command reports in AGENTOS_OUTCOME."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from agentos.costs import Usage
from agentos.pool.core.cost import AbsurdUsage, parse_used
from agentos.providers.answers.usage import StatedUsage
from agentos.providers.signal import LONGEST_DELAY
from agentos.runs.commands.outcome_file import CommandOutcome, InvalidOutcome, load_outcome

NOW = 1_800_000_000.0


def said(tmp_path: Path, text: str) -> CommandOutcome | None:
    path = tmp_path / "outcome"
    path.write_text(text)
    return load_outcome(path, NOW)


def test_no_file_and_an_empty_one_say_nothing(tmp_path: Path) -> None:
    assert load_outcome(tmp_path / "none", NOW) is None
    assert said(tmp_path, " \n") is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ('{"rate_limited": 30}', 30.0),
        ('{"rate_limited": 0.5}', 0.5),
        ('{"rate_limited": true}', None),
        ('{"park_until": 1800003600}', 3600.0),
        ('{"park_until": "2027-01-15T08:10:00+00:00"}', 600.0),
        ('{"park_until": "2027-01-15T08:10:00Z"}', 600.0),
        ('{"rate_limited": 900, "park_until": "2027-01-15T08:10:00+00:00"}', 900.0),
        ('{"park_until": "2020-01-01T00:00:00+00:00"}', 0.0),
        ('{"park_until": "2137-01-01T00:00:00+00:00"}', LONGEST_DELAY),
    ],
)
def test_a_limit_lasts_as_long_as_was_said(tmp_path: Path, text: str, seconds: float | None) -> None:
    found = said(tmp_path, text)

    assert found is not None
    assert found.limited
    assert found.rate_limited == seconds


def test_words_about_the_key_the_item_and_what_was_used(tmp_path: Path) -> None:
    found = said(tmp_path, '{"rejected": "401", "spent": null, "failed": "no such file", "usage": {"tokens": 12}}')

    figures = {"tokens": 12.0}
    assert found == CommandOutcome(rejected="401", failed="no such file", usage=figures, stated=StatedUsage(figures))
    assert found.stated.billed == Usage(input=12)


def test_figures_stay_the_numbers_that_were_written(tmp_path: Path) -> None:
    found = said(tmp_path, '{"usage": {"input_tokens": 900, "output_tokens": 1.5, "tokens": 1' + "0" * 400 + "}}")

    assert found is not None
    assert json.dumps(found.usage) == '{"input_tokens": 900, "output_tokens": 1.5, "tokens": 1.7976931348623157e+308}'


def test_the_usage_object_of_an_agent_is_read_as_its_provider_means_it(tmp_path: Path) -> None:
    """With all that Claude Code writes: nested objects, lists and words are left aside."""
    usage = {
        "input_tokens": 4,
        "cache_creation_input_tokens": 1_000,
        "cache_read_input_tokens": 20_000,
        "output_tokens": 300,
        "server_tool_use": {"web_search_requests": 0},
        "service_tier": "standard",
        "iterations": [],
        "inference_geo": None,
    }

    found = said(tmp_path, json.dumps({"usage": usage}))

    assert found is not None
    assert found.stated.billed == Usage(input=4, output=300, cache_read=20_000, cache_write=1_000)
    assert found.ignored is None


@pytest.mark.parametrize(
    ("usage", "why"),
    [
        ('{"tokens": true}', "usage.tokens must be a number"),
        ('{"tokens": "many", "output_tokens": 5}', "usage.tokens must be a number"),
        ('{"tokenz": 12}', "usage has none of"),
    ],
)
def test_a_figure_that_cannot_be_read_is_ignored_and_the_rest_of_the_outcome_counts(
    tmp_path: Path, usage: str, why: str
) -> None:
    found = said(tmp_path, f'{{"failed": "no such file", "usage": {usage}}}')

    assert found is not None
    assert found.failed == "no such file"
    assert why in (found.ignored or "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "must be an object"),
        ("[" * 100_000, "not JSON"),
        ('{"rate_limited": 1' + "0" * 400 + "}", "rate_limited must be a number"),
        ('{"ratelimited": 1}', "'ratelimited'"),
        ('{"rate_limited": "soon"}', "rate_limited must be a number"),
        ('{"rate_limited": -1}', "rate_limited must be a number"),
        ('{"rate_limited": NaN}', "rate_limited must be a number"),
        ('{"park_until": "tomorrow"}', "park_until must be a time"),
        ('{"rejected": 3}', "rejected must be text"),
        ('{"usage": [1]}', "usage must be an object"),
        ('"' + "x" * 1_000_001 + '"', "longer than a megabyte"),
    ],
)
def test_what_cannot_be_understood_says_why(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidOutcome, match=why):
        said(tmp_path, text)


@pytest.mark.parametrize(
    "figure", ["1e15", "-1", "1e999", "-Infinity", "NaN", "9" * 400, "-" + "9" * 400], ids=lambda figure: figure[:8]
)
def test_usage_that_no_call_can_have_is_read_for_the_pool_to_ignore(tmp_path: Path, figure: str) -> None:
    found = said(tmp_path, f'{{"failed": "no such file", "usage": {{"tokens": {figure}}}}}')

    assert found is not None
    assert found.failed == "no such file"
    assert math.isfinite(found.usage["tokens"])  # it is part of the result, which is JSON
    with pytest.raises(AbsurdUsage):
        parse_used("usage", found.usage)
