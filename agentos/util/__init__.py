"""Clocks, locks, wake-ups, text and files: helpers without knowledge of pools or runs, for every other room."""
