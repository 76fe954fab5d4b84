"""The ``agentos`` command."""
