"""Read the tokens that a call used, as each provider states them.

The providers disagree about cached tokens. The input tokens of OpenAI (``prompt_tokens``, and ``input_tokens`` of the
Responses API) and of Gemini contain them; those of Anthropic and Bedrock do not. Reasoning is part of the output of
OpenAI; Gemini and xAI state it beside the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...costs.usage import Usage, count_tokens

# The first name that is present counts.
_INPUT_NAMES = ("input_tokens", "prompt_tokens", "inputTokens")
_OUTPUT_NAMES = ("output_tokens", "completion_tokens", "outputTokens")
_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
_CACHE_READ_NAMES = ("cache_read_input_tokens", "cacheReadInputTokens", "prompt_cache_hit_tokens")
_CACHE_WRITE_NAMES = ("cache_creation_input_tokens", "cacheWriteInputTokens")
_TOTAL_NAMES = ("total_tokens", "totalTokens")

# The names that are read in a ``usage`` object: of figures, of objects with details, and of the figures in those.
FIGURE_NAMES = frozenset({*_INPUT_NAMES, *_OUTPUT_NAMES, *_CACHE_READ_NAMES, *_CACHE_WRITE_NAMES, *_TOTAL_NAMES})
DETAIL_NAMES = frozenset({*_INPUT_DETAILS, *_OUTPUT_DETAILS})
DETAIL_FIGURES = ("cached_tokens", "cache_write_tokens", "reasoning_tokens")

GEMINI_NAMES = frozenset({"promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount"})
LIMIT_NAMES = frozenset({"requests", "tokens", "input_tokens", "output_tokens"})

UsageObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StatedUsage:
    """The usage that an answer states, as far as it does.

    ``counted`` has the ``input_tokens`` and ``output_tokens`` that count against the limits. ``kinds`` has the same
    tokens by the names of ``Usage``, which is what is billed.
    """

    counted: Mapping[str, float] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def billed(self) -> Usage:
        """The tokens by kind. A bare number of tokens counts as input."""
        if self.kinds or not self.counted:
            return Usage(**self.kinds)
        output = count_tokens(self.counted.get("output_tokens")) or 0
        known = count_tokens(self.counted.get("input_tokens"))
        total = count_tokens(self.counted.get("tokens")) or 0
        return Usage(input=max(0, total - output) if known is None else known, output=output)

    def __bool__(self) -> bool:
        return bool(self.counted)

    def update(self, later: StatedUsage) -> StatedUsage:
        """Return this usage with the figures of *later*, which a stream states after it."""
        return StatedUsage({**self.counted, **later.counted}, {**self.kinds, **later.kinds})


NOTHING_STATED = StatedUsage()


def find_usage(document: UsageObject) -> StatedUsage:
    """Return the usage that a parsed answer states."""
    usage = document.get("usage")
    if isinstance(usage, dict):
        return parse_usage(usage)
    usage = document.get("usageMetadata")
    return parse_gemini_usage(usage) if isinstance(usage, dict) else NOTHING_STATED


def parse_usage(usage: UsageObject) -> StatedUsage:
    """Read a ``usage`` object of any provider. Unknown names are ignored."""
    counted: dict[str, float] = {}
    kinds: dict[str, int] = {}
    prompt = _find_first(usage, _INPUT_NAMES)
    details = _find_details(usage, _INPUT_DETAILS)
    cache_read = _find_first(details, ("cached_tokens",))
    if cache_read is None:
        cache_read = _find_first(usage, _CACHE_READ_NAMES)
    cache_write = _find_first(usage, _CACHE_WRITE_NAMES)
    if prompt is not None:
        written = usage.get("cache_creation_input_tokens")
        counted["input_tokens"] = prompt + (count_tokens(written) or 0.0)
        if details or "prompt_tokens" in usage:  # then the prompt contains the cached tokens
            if cache_write is None:
                cache_write = _find_first(details, ("cache_write_tokens",))
            prompt = max(0, prompt - (cache_read or 0) - (cache_write or 0))
        kinds["input"] = prompt
    if cache_read is not None:
        kinds["cache_read"] = cache_read
    if cache_write is not None:
        kinds["cache_write"] = cache_write
    output = _find_first(usage, _OUTPUT_NAMES)
    reasoning = _find_first(_find_details(usage, _OUTPUT_DETAILS), ("reasoning_tokens",))
    if reasoning is not None:
        kinds["reasoning"] = reasoning
    if output is not None:
        counted["output_tokens"] = float(output)
        total = _find_first(usage, _TOTAL_NAMES)
        if reasoning and total == counted.get("input_tokens", 0.0) + output + reasoning:
            output += reasoning  # xAI states it beside the output
        kinds["output"] = output
    return StatedUsage(counted, kinds)


def parse_reported_usage(figures: UsageObject) -> StatedUsage:
    """Read usage that a worker reports: amounts by the names of limits, or the ``usage`` object of an answer.

    Amounts are not checked: the pool refuses impossible ones.
    """
    if not (FIGURE_NAMES | DETAIL_NAMES | GEMINI_NAMES) - LIMIT_NAMES & figures.keys():
        return StatedUsage(figures)
    stated = parse_gemini_usage(figures) if GEMINI_NAMES & figures.keys() else parse_usage(figures)
    return StatedUsage(
        {**stated.counted, **{n: figures[n] for n in ("requests", "tokens") if n in figures}}, stated.kinds
    )


def parse_gemini_usage(usage: UsageObject) -> StatedUsage:
    """Read the ``usageMetadata`` of Gemini."""
    counted: dict[str, float] = {}
    kinds: dict[str, int] = {}
    prompt = count_tokens(usage.get("promptTokenCount"))
    cached = count_tokens(usage.get("cachedContentTokenCount"))
    if prompt is not None:
        counted["input_tokens"] = float(prompt)
        tool_use = count_tokens(usage.get("toolUsePromptTokenCount")) or 0
        kinds["input"] = max(0, prompt - (cached or 0)) + tool_use
    if cached is not None:
        kinds["cache_read"] = cached
    answer, thoughts = count_tokens(usage.get("candidatesTokenCount")), count_tokens(usage.get("thoughtsTokenCount"))
    if thoughts is not None:
        kinds["reasoning"] = thoughts
    if answer is not None or thoughts is not None:
        kinds["output"] = (answer or 0) + (thoughts or 0)
        counted["output_tokens"] = float(kinds["output"])
    return StatedUsage(counted, kinds)


def _find_details(usage: UsageObject, names: tuple[str, ...]) -> UsageObject:
    found = next((usage[name] for name in names if name in usage), None)
    return found if isinstance(found, Mapping) else {}


def _find_first(usage: UsageObject, names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in usage:
            amount = count_tokens(usage[name])
            if amount is not None:
                return amount
    return None
