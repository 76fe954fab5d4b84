"""Workflows over a list of items; the only one so far runs them in parallel."""
