"""Account for the tokens of an attempt: to its credentials, its item and its result."""

from __future__ import annotations

from typing import Any

from ...costs.usage import NO_USAGE, Usage
from ...costs.usage_log import NOTHING_USED
from ...providers.clients.exceptions import read_signal
from ..core.records import Attempt

# Most workers return one of these. None of them is the answer of a client.
_PLAIN = frozenset((type(None), str, bytes, bool, int, float, list, tuple))


def take_usage(attempt: Attempt, value: Any = None) -> Usage:
    """Take what the attempt used, add it to its item's total, and return it.

    If nothing was reported, *value* may be the answer of a client, which states its usage.
    """
    used = attempt.usage_log.take()
    if not used and type(value) not in _PLAIN:
        signal = read_signal(value, now=0.0)
        used = {None: signal.billed} if signal is not None and signal.billed else NOTHING_USED
    if not used:
        attempt.used = NOTHING_USED
        return NO_USAGE
    name = "" if attempt.grant is None else attempt.grant.key.name
    attempt.used = {}
    for credential, usage in used.items():
        key = name if credential is None else credential
        attempt.used[key] = attempt.used.get(key, NO_USAGE) + usage
    total = sum(used.values(), NO_USAGE)
    attempt.item.usage = total if attempt.item.usage is None else attempt.item.usage + total
    return total
