"""The number of slots of a credential where the processes that share it state different ones.

The credential has as many as the most generous of its users states, and each process takes at most its own number of
them. So a process with ``slots=1`` gets its turn beside one with ``slots="auto"``, in the order of the fair queue; and
where all state the same number, there are no more leases than that in all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence

AUTO = 0  # in place of a stated number: as many as were inferred


def find_width(stated: int, elsewhere: Sequence[int], learned: int) -> int:
    """Return how many leases of all processes a credential bears at once.

    *stated* is this process's number of slots, *elsewhere* the number that each lease of another process was granted
    with; *learned* stands for those that are AUTO.
    """
    return max([each or learned for each in (stated, *elsewhere)]) if elsewhere else stated or learned


def count_usable_slots(mine: int, stated: int, elsewhere: Sequence[int], learned: int) -> int:
    """Return how many leases of all processes there may be for a process that may hold *mine* of them itself."""
    return min(mine + len(elsewhere), find_width(stated, elsewhere, learned))
