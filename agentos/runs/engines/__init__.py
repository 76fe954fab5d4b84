"""Engines execute attempts: on threads, an event loop, as subprocesses, on the user's executor or a Dask cluster."""
