"""The version of agentos."""

__version__ = "0.1.0"
