"""Engines, one by one: what the contract that all share does not tell of each."""
