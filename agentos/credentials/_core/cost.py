"""What a request takes from the limits: one number per dimension, or None where nobody knows yet."""

from __future__ import annotations

from collections.abc import Mapping

DIMENSIONS = ("requests", "tokens", "input_tokens", "output_tokens")
REQUESTS, TOKENS, INPUT, OUTPUT = range(4)

# In the order of DIMENSIONS; None: unknown.
Cost = tuple[float, float | None, float | None, float | None]
Used = tuple[float | None, float | None, float | None, float | None]

ONE_REQUEST: Cost = (1.0, None, None, None)

_INFINITE = float("inf")


def used_of(argument: str, told: Mapping[str, float]) -> Used:
    """Check the caller's figures and complete them: tokens are what was *given* to the model and *made* by it."""
    requests = tokens = given = made = None
    try:
        for name, amount in told.items():
            if not 0 <= amount < _INFINITE:
                raise _complaint(argument, told)
            if name == "tokens":
                tokens = amount
            elif name == "input_tokens":
                given = amount
            elif name == "output_tokens":
                made = amount
            elif name == "requests":
                requests = amount
            else:
                raise _complaint(argument, told)
    except (AttributeError, TypeError):
        raise _complaint(argument, told) from None
    if given is None:
        if made is not None and tokens is not None:
            given = max(tokens - made, 0.0)
    elif made is None:
        if tokens is not None:
            made = max(tokens - given, 0.0)
    elif tokens is None:
        tokens = given + made
    return (requests, tokens, given, made)


def _complaint(argument: str, told: object) -> ValueError:
    if not isinstance(told, Mapping):
        return ValueError(f'{argument} must be a mapping such as {{"tokens": 1200}}, not {type(told).__name__}')
    for name, value in told.items():
        if name not in DIMENSIONS:
            return ValueError(f"{argument}: unknown dimension {name!r}; it must be one of {', '.join(DIMENSIONS)}")
        if not isinstance(value, (int, float)) or not 0 <= value < _INFINITE:
            return ValueError(f"{argument}: {name} must be a number of at least 0, not {value!r}")
    return ValueError(f"{argument} must be a mapping of dimensions to numbers")


def request_cost(told: Mapping[str, float] | None) -> Cost:
    """The cost of a request that wants to start: at least one request, parts bounded by the whole."""
    if told is None:
        return ONE_REQUEST
    requests, tokens, given, made = used_of("cost", told)
    if requests is None:
        requests = 1.0
    elif requests < 1:
        raise ValueError(f"cost: requests must be at least 1, not {requests:g}")
    if tokens is not None:
        given = tokens if given is None else given
        made = tokens if made is None else made
    return (requests, tokens, given, made)


def no_smaller(cost: Cost, other: Cost) -> bool:
    """Whether *cost* surely takes at least as much as *other* of everything."""
    return cost == other or all(
        mine is not None and theirs is not None and mine >= theirs for mine, theirs in zip(cost, other, strict=True)
    )
