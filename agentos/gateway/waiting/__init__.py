"""Waiting for a key: ways to hold a client, lanes, places in line, and one timer for all."""
