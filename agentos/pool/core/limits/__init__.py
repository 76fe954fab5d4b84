"""Limit arithmetic: how much is left, and when an amount fits."""
