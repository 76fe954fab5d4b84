"""Where workers run: own threads, an event loop."""
