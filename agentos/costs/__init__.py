"""The cost of calls: the tokens that providers bill."""

from .usage import Usage

__all__ = ["Usage"]
