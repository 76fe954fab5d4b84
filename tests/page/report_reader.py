"""Read a report as the browser does: the data block of the file, unpacked."""

from __future__ import annotations

import base64
import re
import zlib
from pathlib import Path
from typing import Any

from agentos.page.packing import unpack

_BLOCK = re.compile(r'<script type="application/octet-stream" id="data">\s*(.*?)\s*</script>', re.DOTALL)


def read_block(page: Path) -> bytes:
    """The packed data of a report."""
    found = _BLOCK.search(page.read_text(encoding="utf-8"))
    assert found is not None
    return base64.b64decode(found[1])


def read_data(page: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The facts and the columns of a report."""
    return unpack(read_block(page))


def all_bytes(page: Path) -> bytes:
    """Everything that is in the file, also what is compressed."""
    return page.read_bytes() + zlib.decompress(read_block(page), wbits=31)
