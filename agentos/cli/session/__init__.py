"""One session of a run: its request, folder, pool, worker, records and closing summary."""
