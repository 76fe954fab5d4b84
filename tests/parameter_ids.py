"""How tests are named by their parameters: the same in every process that collects them."""

from __future__ import annotations

import re


def named(thing: object) -> str:
    """Its repr, without the address that is another one in each process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))
