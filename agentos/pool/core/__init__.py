"""Pure state and rules of a pool: which credential a request gets, and when.

Nothing in here reads a clock, takes a lock, starts a thread or does I/O. Callers pass facts and ``now`` and receive
grants and instants, so that threads, asyncio, a shared store and a simulation use the same rules.
"""
