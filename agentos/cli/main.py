"""The ``agentos`` command. So far it tells its version; the commands that run a batch join it here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .. import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, act, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="agentos",
        description="Run a long list of agent or LLM work over a handful of rate-limited credentials. "
        "For now agentos is a Python library: see CredentialCoordinator in the README.",
    )
    parser.add_argument("--version", action="version", version=f"agentos {__version__}")
    parser.parse_args(argv)
    parser.print_help()
    return 0
