"""The name of this machine, recorded so that people can find the process that owns a journal."""

from __future__ import annotations

import platform
from typing import Final

HOST: Final = platform.node() or "an unnamed host"
