"""Runs: execute a worker over items, record the outcomes and report them."""
