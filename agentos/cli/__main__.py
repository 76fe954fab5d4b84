"""``python -m agentos.cli`` is the ``agentos`` command."""

from .entry import entry

entry()
