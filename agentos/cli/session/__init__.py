"""One run of the command: its request, folder, pool, worker and closing summary."""
