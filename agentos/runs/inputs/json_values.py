"""Decode JSON strictly: NaN and infinite numbers are not JSON."""

from __future__ import annotations

import json
from typing import Any


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
decode_json = DECODER.decode
