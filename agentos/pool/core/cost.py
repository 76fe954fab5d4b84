"""The cost of a request: one amount per dimension, or None where it is unknown."""

from __future__ import annotations

from collections.abc import Mapping

DIMENSIONS = ("requests", "tokens", "input_tokens", "output_tokens")
REQUESTS, TOKENS, INPUT, OUTPUT = range(4)

# In the order of DIMENSIONS; None: unknown.
Cost = tuple[float, float | None, float | None, float | None]
Used = tuple[float | None, float | None, float | None, float | None]

ONE_REQUEST: Cost = (1.0, None, None, None)

# No call uses more. A larger figure is wrong, and would exhaust its key for years.
MOST_USED = 1e9

_INFINITE = float("inf")


class AbsurdUsage(ValueError):
    """A usage figure is negative, not finite, or larger than `MOST_USED`."""


def parse_used(argument: str, amounts: Mapping[str, float], *, whole: bool = True) -> Used:
    """Check the caller's figures and complete them: tokens are *given* to the model and *made* by it.

    Input tokens alone are all that was used, as for an embedding, unless the call was cut short (*whole* is False).
    Raises AbsurdUsage, or ValueError for what is not a usage.
    """
    used = _figures(argument, amounts, MOST_USED)
    requests, tokens, given, made = used
    return (requests, given, given, None) if whole and tokens is None and made is None else used


def is_absurd(amount: float) -> bool:
    """Return True if no call can have used that much."""
    return not 0 <= amount <= MOST_USED


def _figures(argument: str, amounts: Mapping[str, float], most: float) -> Used:
    requests = tokens = given = made = None
    try:
        for name, amount in amounts.items():
            if not 0 <= amount <= most or amount == _INFINITE:
                raise _complaint(argument, amounts, most)
            if name == "tokens":
                tokens = amount
            elif name == "input_tokens":
                given = amount
            elif name == "output_tokens":
                made = amount
            elif name == "requests":
                requests = amount
            else:
                raise _complaint(argument, amounts, most)
    except (AttributeError, TypeError):
        raise _complaint(argument, amounts, most) from None
    if given is None:
        if made is not None and tokens is not None:
            given = max(tokens - made, 0.0)
    elif made is None:
        if tokens is not None:
            made = max(tokens - given, 0.0)
    elif tokens is None:
        tokens = given + made
    return (requests, tokens, given, made)


def _complaint(argument: str, amounts: object, most: float) -> ValueError:
    if not isinstance(amounts, Mapping):
        return ValueError(f'{argument} must be a mapping such as {{"tokens": 1200}}, not {type(amounts).__name__}')
    for name, value in amounts.items():
        if name not in DIMENSIONS:
            return ValueError(f"{argument}: unknown dimension {name!r}; it must be one of {', '.join(DIMENSIONS)}")
        if not isinstance(value, (int, float)):
            return ValueError(f"{argument}: {name} must be a number of at least 0, not {value!r}")
    for name, value in amounts.items():
        if not 0 <= value <= most or value == _INFINITE:
            return AbsurdUsage(f"{argument}: {name} must be a number of at least 0, not {_shown(value)}")
    return ValueError(f"{argument} must be a mapping of dimensions to numbers")


def _shown(value: float) -> str:
    try:
        return repr(value)[:40]
    except ValueError:  # Python refuses to format integers of thousands of digits
        return "a whole number of thousands of digits"


def request_cost(amounts: Mapping[str, float] | None) -> Cost:
    """Return the cost of a request: at least one request, parts bounded by the whole."""
    if amounts is None:
        return ONE_REQUEST
    requests, tokens, given, made = _figures("cost", amounts, _INFINITE)
    if requests is None:
        requests = 1.0
    elif requests < 1:
        raise ValueError(f"cost: requests must be at least 1, not {requests:g}")
    if tokens is not None:
        given = tokens if given is None else given
        made = tokens if made is None else made
    return (requests, tokens, given, made)


def is_at_least(cost: Cost, other: Cost) -> bool:
    """Return True if *cost* takes at least as much as *other* of every dimension."""
    return cost == other or all(
        mine is not None and theirs is not None and mine >= theirs for mine, theirs in zip(cost, other, strict=True)
    )
