"""Clocks, locks, wake-ups, text and files: helpers for all rooms, independent of pools and runs."""
