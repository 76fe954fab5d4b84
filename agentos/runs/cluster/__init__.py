"""Execution of attempts on other machines: the driver's server, the workers' clients and their worker slots.

This package does not depend on the scheduler that places the worker slots (Dask or another cluster).
"""
