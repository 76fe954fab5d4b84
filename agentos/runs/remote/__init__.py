"""Attempts in other processes and on other machines: assignments, reports, and their effect in the driver.

Independent of the transport: an executor, a cluster, or our own connection.
"""
