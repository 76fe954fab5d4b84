"""Where workers run: own threads, an event loop, commands, an executor of the user's, a cluster."""
